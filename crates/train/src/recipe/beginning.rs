//! What is refused where a run begins: keys that have no effect. A run that began before they were refused goes on with them.

use regard_models::{
    TransformerConfig,
    image::{
        BackboneConfig, CaptionerConfig, DetrConfig, VisionTransformerConfig, VqaConfig,
        vit::ImagePositions, vqa::RegionAttention,
    },
    language::TransformerLmConfig,
    sentence::TransformerClassifierConfig,
    transformer::Positions,
};

use super::{ImageData, Recipe, SceneData};
use crate::corpus::CorpusError;

/// Whether a key has another value than the default, but no effect; its name, and why it has none.
type Key = (bool, &'static str, &'static str);

impl Recipe {
    /// Refuses keys that are set without effect, as far as their values tell, and CIFAR's test batch for validation and test at once.
    /// `asks` says whether models of the recipe read the questions about drawn scenes.
    ///
    /// # Errors
    /// [`CorpusError::Setting`] for the first such key.
    pub(crate) fn expect_to_begin(&self, asks: bool) -> Result<(), CorpusError> {
        let images = self.data.images.as_ref();
        if images.is_some_and(ImageData::validates_on_test) {
            let problem = "the test batch of CIFAR, which data.images.test names too, so that the best checkpoint would be chosen by the test; expected to be left out: data.images.valid_share of the training images then is for validation";
            let (field, problem) = ("data.images.valid", problem.to_owned());
            return Err(CorpusError::Setting { field, problem });
        }
        let asked = self.data.scenes.as_ref().map(|scenes| scenes.questions);
        let asked = asked.is_some_and(|asked| asked != SceneData::default().questions);
        let questions = (
            asked && !asks,
            "data.scenes.questions",
            "a model of this kind reads no questions",
        );
        let mut keys = images.map_or_else(Vec::new, of_images);
        keys.extend(self.of_model());
        keys.push(questions);
        match keys.into_iter().find(|(is_set, ..)| *is_set) {
            Some((_, field, why)) => {
                let problem =
                    format!("set, but {why}, so that this has no effect; expected no such key");
                Err(CorpusError::Setting { field, problem })
            }
            None => Ok(()),
        }
    }

    /// The keys of `[model]`.
    fn of_model(&self) -> Vec<Key> {
        let model = &self.model;
        let detr = model.config::<DetrConfig>().map(|of| &of.backbone);
        let captioner = model.config::<CaptionerConfig>().map(|of| &of.backbone);
        let vqa = model.config::<VqaConfig>();
        let blind = vqa.filter(|of| matches!(of.attention, RegionAttention::QuestionOnly));
        let backbone = detr.or(captioner).or(vqa.map(|of| &of.backbone));
        let large = backbone.filter(|backbone| backbone.depth.is_some());
        let usual = BackboneConfig::default();
        let depth = "model.backbone.depth decides on the stages and their blocks";

        let lm = model.config::<TransformerLmConfig>();
        let classifier = model.config::<TransformerClassifierConfig>();
        let tokens = lm.map(|of| &of.transformer);
        let tokens = tokens.or(classifier.map(|of| &of.transformer));
        let pairs = model.config::<TransformerConfig>();
        let vit = model.config::<VisionTransformerConfig>();
        let blocks = match (pairs, tokens) {
            (Some(pairs), _) => of_blocks(
                pairs,
                [
                    "model.rotary_base",
                    "model.rotary_scaling",
                    "model.window_rotary_base",
                    "model.full_every",
                    "model.score_scale",
                ],
            ),
            (None, Some(tokens)) => of_blocks(
                &tokens.blocks(),
                [
                    "model.transformer.rotary_base",
                    "model.transformer.rotary_scaling",
                    "model.transformer.window_rotary_base",
                    "model.transformer.full_every",
                    "model.transformer.score_scale",
                ],
            ),
            (None, None) => vec![],
        };
        let patches = VisionTransformerConfig::default();
        let mut keys = vec![
            (
                vit.is_some_and(|of| {
                    of.positions != ImagePositions::Rotary && of.rotary_base != patches.rotary_base
                }),
                "model.rotary_base",
                NOT_ROTARY,
            ),
            (
                blind.is_some_and(|of| of.backbone != usual),
                "model.backbone",
                "model.attention is \"question-only\", which sees no image",
            ),
            (
                large.is_some_and(|of| of.stages != usual.stages),
                "model.backbone.stages",
                depth,
            ),
            (
                large.is_some_and(|of| of.blocks != usual.blocks),
                "model.backbone.blocks",
                depth,
            ),
        ];
        keys.extend(blocks);
        keys
    }
}

/// Why keys of rotary positions have no effect.
const NOT_ROTARY: &str = "positions are not \"rotary\"";

/// The keys of a Transformer's blocks: `names` of the base and the scaling of rotary positions, the base in windows, the turns of windows and the
/// factor of scores.
fn of_blocks(of: &TransformerConfig, names: [&'static str; 5]) -> Vec<Key> {
    let usual = TransformerConfig::default();
    let turned = of.positions == Positions::Rotary;
    let [base, scaling, window_base, full_every, scale] = names;
    vec![
        (
            !turned && of.rotary_base != usual.rotary_base,
            base,
            NOT_ROTARY,
        ),
        (
            !turned && of.rotary_scaling != usual.rotary_scaling,
            scaling,
            NOT_ROTARY,
        ),
        (
            !turned && of.window_rotary_base.is_some(),
            window_base,
            NOT_ROTARY,
        ),
        (
            of.window.is_none() && of.window_rotary_base.is_some(),
            window_base,
            "there is no window",
        ),
        (
            of.window.is_none() && of.full_every.is_some(),
            full_every,
            "there is no window",
        ),
        (
            of.score != usual.score && of.score_scale.is_some(),
            scale,
            "the score is not \"scaled-dot\"",
        ),
    ]
}

/// The keys of `[data.images]`.
fn of_images(images: &ImageData) -> Vec<Key> {
    let usual = ImageData::default();
    let (augment, usually) = (&images.augment, &usual.augment);
    vec![
        (
            images.valid.is_some() && images.valid_share != usual.valid_share,
            "data.images.valid_share",
            "data.images.valid names the images for validation",
        ),
        (
            augment.operations == 0 && augment.strength != usually.strength,
            "data.images.augment.strength",
            "data.images.augment.operations is 0",
        ),
    ]
}
