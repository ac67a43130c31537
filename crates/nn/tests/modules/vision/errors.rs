//! Sizes that do not fit are errors that name the size, what was found and what would be accepted, before
//! anything is computed: nothing panics inside Burn.

use crate::support::device;
use burn::tensor::{DType, Tensor};
use regard_nn::{
    initialize::Initializer,
    mask::PaddingMask,
    vision::{
        AnswerHeadConfig, AxialAttentionConfig, CaptionAttentionConfig, CbamConfig, GatedTanh,
        MaskBranchConfig, NonLocalConfig, PatchEmbeddingConfig, QuestionAttentionConfig, Regions,
        ResidualUnit, SpatialAttentionConfig, SqueezeExciteConfig, VisionError,
    },
};

fn initializer() -> Initializer {
    Initializer::new(1, &device())
}

fn zeros<const D: usize>(shape: [usize; D]) -> Tensor<D> {
    Tensor::zeros(shape, &device())
}

fn message<T>(result: Result<T, VisionError>) -> String {
    match result {
        Ok(_) => panic!("no error"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn configurations() {
    let init = &mut initializer();
    let indivisible = "`channels` is 20 and `reduction` is 16, which does not divide it; \
                       the nearest `reduction` that does is 20";
    assert_eq!(
        message(SqueezeExciteConfig::new(20).init(init)),
        indivisible
    );
    assert_eq!(message(CbamConfig::new(20).init(init)), indivisible);
    assert_eq!(
        SqueezeExciteConfig::new(20).init(init).unwrap_err(),
        VisionError::NotDivisible {
            field: "channels",
            found: 20,
            divisor_field: "reduction",
            divisor: 16,
            nearest: 20
        }
    );
    assert_eq!(
        message(SpatialAttentionConfig::new().with_kernel(4).init(init)),
        "`kernel` is 4; it must be odd, so that the map keeps its size: 3 or 5"
    );
    assert_eq!(
        message(AxialAttentionConfig::new(12).with_heads(5).init(init)),
        "`channels` is 12 and `heads` is 5, which does not divide it; the nearest `heads` that does is 4"
    );
    assert_eq!(
        message(MaskBranchConfig::new(6).init(init)),
        "`channels` is 6 and `reduction` is 4, which does not divide it; \
         the nearest `reduction` that does is 3"
    );
    assert_eq!(
        message(PatchEmbeddingConfig::new([32, 30], [16, 16], 3, 8).init(init)),
        "`image width` is 30 and `patch width` is 16, which does not divide it; \
         the nearest `patch width` that does is 15"
    );
    let embedding = PatchEmbeddingConfig::new([32, 32], [16, 16], 3, 8).init(init);
    assert_eq!(
        message(embedding.unwrap().resized([40, 32])),
        "`image height` is 40 and `patch height` is 16, which does not divide it; \
         the nearest `patch height` that does is 20"
    );
}

#[test]
fn sizes_of_zero() {
    let init = &mut initializer();
    let too_small = |field| format!("`{field}` is 0; it must be at least 1");
    let found = [
        ("channels", message(SqueezeExciteConfig::new(0).init(init))),
        (
            "reduction",
            message(SqueezeExciteConfig::new(4).with_reduction(0).init(init)),
        ),
        (
            "kernel",
            message(SpatialAttentionConfig::new().with_kernel(0).init(init)),
        ),
        ("channels", message(CbamConfig::new(0).init(init))),
        ("channels", message(MaskBranchConfig::new(0).init(init))),
        ("channels", message(ResidualUnit::new(0, 4, init))),
        (
            "levels",
            message(MaskBranchConfig::new(4).with_levels(0).init(init)),
        ),
        (
            "units",
            message(MaskBranchConfig::new(4).with_units(0).init(init)),
        ),
        ("channels", message(NonLocalConfig::new(0).init(init))),
        (
            "inner",
            message(NonLocalConfig::new(4).with_inner(Some(0)).init(init)),
        ),
        (
            "pool",
            message(NonLocalConfig::new(4).with_pool(0).init(init)),
        ),
        (
            "heads",
            message(AxialAttentionConfig::new(4).with_heads(0).init(init)),
        ),
        (
            "span",
            message(AxialAttentionConfig::new(8).with_span(Some(0)).init(init)),
        ),
        (
            "feature_size",
            message(CaptionAttentionConfig::new(0, 1, 1).init(init)),
        ),
        (
            "state_size",
            message(CaptionAttentionConfig::new(1, 0, 1).init(init)),
        ),
        (
            "hidden",
            message(CaptionAttentionConfig::new(1, 1, 0).init(init)),
        ),
        (
            "feature_size",
            message(QuestionAttentionConfig::new(0, 1, 1).init(init)),
        ),
        (
            "question_size",
            message(QuestionAttentionConfig::new(1, 0, 1).init(init)),
        ),
        (
            "hidden",
            message(QuestionAttentionConfig::new(1, 1, 0).init(init)),
        ),
        (
            "question_size",
            message(AnswerHeadConfig::new(0, 1, 1, 1).init(init)),
        ),
        (
            "feature_size",
            message(AnswerHeadConfig::new(1, 0, 1, 1).init(init)),
        ),
        (
            "hidden",
            message(AnswerHeadConfig::new(1, 1, 0, 1).init(init)),
        ),
        (
            "answers",
            message(AnswerHeadConfig::new(1, 1, 1, 0).init(init)),
        ),
        (
            "patch height",
            message(PatchEmbeddingConfig::new([2, 2], [0, 1], 1, 1).init(init)),
        ),
        (
            "image width",
            message(PatchEmbeddingConfig::new([2, 0], [1, 1], 1, 1).init(init)),
        ),
        (
            "channels",
            message(PatchEmbeddingConfig::new([2, 2], [1, 1], 0, 1).init(init)),
        ),
        (
            "size",
            message(PatchEmbeddingConfig::new([2, 2], [1, 1], 1, 0).init(init)),
        ),
    ];
    for (field, found) in found {
        assert_eq!(found, too_small(field));
    }
}

/// Every module that takes a map, with every kind of wrong map.
#[test]
fn maps() {
    let init = &mut initializer();
    let squeeze_excite = SqueezeExciteConfig::new(8)
        .with_reduction(2)
        .init(init)
        .unwrap();
    let cbam = CbamConfig::new(8).with_reduction(2).init(init).unwrap();
    let unit = ResidualUnit::new(8, 4, init).unwrap();
    let mask = MaskBranchConfig::new(8).init(init).unwrap();
    let non_local = NonLocalConfig::new(8).init(init).unwrap();
    let axial = AxialAttentionConfig::new(8).init(init).unwrap();
    let spatial = SpatialAttentionConfig::new().init(init).unwrap();
    let mut checked = 0;
    for shape in [
        [2, 7, 3, 3],
        [0, 8, 3, 3],
        [2, 8, 0, 3],
        [2, 8, 3, 0],
        [2, 0, 3, 3],
    ] {
        let expected =
            format!("`map` is {shape:?}; expected [batch, channels = 8, height, width], no size 0");
        for found in [
            message(squeeze_excite.forward(zeros(shape))),
            message(cbam.forward(zeros(shape))),
            message(cbam.channel.attend(zeros(shape))),
            message(unit.forward(zeros(shape))),
            message(mask.forward(zeros(shape))),
            message(mask.attend(zeros(shape), zeros(shape))),
            message(non_local.forward(zeros(shape))),
            message(axial.forward(zeros(shape))),
        ] {
            assert_eq!(found, expected);
            checked += 1;
        }
        if shape.contains(&0) {
            let expected =
                format!("`map` is {shape:?}; expected [batch, channels, height, width], no size 0");
            assert_eq!(message(spatial.forward(zeros(shape))), expected);
            checked += 1;
        }
    }
    assert_eq!(checked, 44);
}

#[test]
fn other_inputs() {
    let init = &mut initializer();
    let mask = MaskBranchConfig::new(8).with_levels(1).init(init).unwrap();
    assert_eq!(
        message(mask.attend(zeros([2, 8, 3, 3]), zeros([2, 8, 3, 2]))),
        "`trunk` is [2, 8, 3, 2]; expected [batch = 2, channels = 8, height = 3, width = 3], no size 0"
    );
    let non_local = NonLocalConfig::new(8).init(init).unwrap();
    assert_eq!(
        message(non_local.forward(zeros([2, 8, 3]))),
        "`map` is [2, 8, 3]; expected [batch, channels = 8, height, width], no size 0"
    );
    assert_eq!(
        message(non_local.forward(zeros([2, 7, 3, 3, 3]))),
        "`map` is [2, 7, 3, 3, 3]; expected [batch, channels = 8, time, height, width], no size 0"
    );
    assert_eq!(
        message(non_local.forward(zeros([2, 8, 3, 3, 3, 3]))),
        "`map` is [2, 8, 3, 3, 3, 3]; expected [batch, channels = 8, height, width], no size 0"
    );
    let axial = AxialAttentionConfig::new(8)
        .with_span(Some(5))
        .init(init)
        .unwrap();
    for (shape, field) in [([1, 8, 6, 5], "height"), ([1, 8, 5, 6], "width")] {
        assert_eq!(
            message(axial.forward(zeros(shape))),
            format!(
                "`{field}` is 6; it must be at most `span` = 5: build the module with a larger `span`"
            )
        );
    }
    let patches = PatchEmbeddingConfig::new([4, 6], [2, 2], 3, 8)
        .init(init)
        .unwrap();
    assert_eq!(
        message(patches.forward(zeros([1, 3, 4, 8]))),
        "`image` is [1, 3, 4, 8]; expected [batch, channels = 3, height = 4, width = 6], no size 0"
    );
    assert_eq!(
        message(patches.on_image(zeros([1, 2, 6]))),
        "`weights` is [1, 2, 6]; expected [batch, queries, tokens = 7], no size 0"
    );
}

#[test]
fn region_inputs() {
    let init = &mut initializer();
    let keep = |batch: usize, regions| {
        PaddingMask::from_lengths(&vec![regions; batch], regions, &device())
    };
    let regions = |feature_size| Regions::new(zeros([2, 3, feature_size]), keep(2, 3)).unwrap();
    assert_eq!(
        message(Regions::new(zeros([2, 0, 4]), keep(2, 0))),
        "`features` is [2, 0, 4]; expected [batch, regions, feature size], no size 0"
    );
    for (batch, count) in [(1, 3), (2, 4)] {
        assert_eq!(
            message(Regions::new(zeros([2, 3, 4]), keep(batch, count))),
            format!("`keep` is [{batch}, {count}]; expected [batch = 2, regions = 3], no size 0")
        );
    }
    let features =
        "`features` is [2, 3, 5]; expected [batch, regions, feature size = 4], no size 0";
    let caption = CaptionAttentionConfig::new(4, 6, 2).init(init).unwrap();
    assert_eq!(message(caption.prepare(&regions(5))), features);
    let prepared = caption.prepare(&regions(4)).unwrap();
    for shape in [[2, 5], [1, 6]] {
        assert_eq!(
            message(caption.forward(zeros(shape), &prepared)),
            format!("`state` is {shape:?}; expected [batch = 2, size = 6], no size 0")
        );
    }
    let question = QuestionAttentionConfig::new(4, 6, 2).init(init).unwrap();
    assert_eq!(
        message(question.forward(zeros([2, 6]), &regions(5))),
        features
    );
    for shape in [[2, 5], [1, 6]] {
        assert_eq!(
            message(question.forward(zeros(shape), &regions(4))),
            format!("`question` is {shape:?}; expected [batch = 2, size = 6], no size 0")
        );
    }
    let head = AnswerHeadConfig::new(6, 4, 2, 3).init(init).unwrap();
    assert_eq!(
        message(head.forward(zeros([2, 5]), zeros([2, 4]))),
        "`question` is [2, 5]; expected [batch, size = 6], no size 0"
    );
    assert_eq!(
        message(head.logits(zeros([2, 6]), zeros([1, 4]))),
        "`context` is [1, 4]; expected [batch = 2, size = 4], no size 0"
    );
    assert_eq!(
        message(GatedTanh::new(3, 2, init).forward(zeros([2, 4]))),
        "`x` is [2, 4]; expected [batch, inputs = 3], no size 0"
    );
}

/// Numbers of another precision than the weights' are refused too.
#[test]
fn precisions() {
    fn wide<const D: usize>(shape: [usize; D]) -> Tensor<D> {
        Tensor::zeros(shape, (&device(), DType::F64))
    }
    let init = &mut initializer();
    let map = || wide([1, 8, 4, 4]);
    let expected =
        |field| format!("`{field}` is f64; it must be f32, as the weights are: cast one of them");
    let mask = MaskBranchConfig::new(8).with_levels(1).init(init).unwrap();
    let cbam = CbamConfig::new(8).with_reduction(2).init(init).unwrap();
    let squeeze_excite = SqueezeExciteConfig::new(8)
        .with_reduction(2)
        .init(init)
        .unwrap();
    for found in [
        message(squeeze_excite.forward(map())),
        message(cbam.forward(map())),
        message(cbam.spatial.forward(map())),
        message(ResidualUnit::new(8, 2, init).unwrap().forward(map())),
        message(mask.forward(map())),
        message(NonLocalConfig::new(8).init(init).unwrap().forward(map())),
        message(
            AxialAttentionConfig::new(8)
                .init(init)
                .unwrap()
                .forward(map()),
        ),
    ] {
        assert_eq!(found, expected("map"));
    }
    assert_eq!(
        message(mask.attend(zeros([1, 8, 4, 4]), map())),
        expected("trunk")
    );
    let patches = PatchEmbeddingConfig::new([4, 4], [2, 2], 8, 3)
        .init(init)
        .unwrap();
    assert_eq!(message(patches.forward(map())), expected("image"));
    let keep = || PaddingMask::from_lengths(&[3], 3, &device());
    let regions = Regions::new(zeros([1, 3, 4]), keep()).unwrap();
    assert_eq!(
        message(regions.read(wide([1, 2, 3]))),
        "`scores` is f64; it must be f32, as the features are: cast one of them"
    );
    let wide_regions = Regions::new(wide([1, 3, 4]), keep()).unwrap();
    let caption = CaptionAttentionConfig::new(4, 6, 2).init(init).unwrap();
    assert_eq!(
        message(caption.prepare(&wide_regions)),
        expected("features")
    );
    let prepared = caption.prepare(&regions).unwrap();
    assert_eq!(
        message(caption.forward(wide([1, 6]), &prepared)),
        expected("state")
    );
    let other = CaptionAttentionConfig::new(4, 6, 3).init(init).unwrap();
    assert!(message(other.forward(zeros([1, 6]), &prepared)).starts_with("`keys` is [1, 3, 2]"));
    let question = QuestionAttentionConfig::new(4, 6, 2).init(init).unwrap();
    assert_eq!(
        message(question.forward(zeros([1, 6]), &wide_regions)),
        expected("features")
    );
    assert_eq!(
        message(question.forward(wide([1, 6]), &regions)),
        expected("question")
    );
    let head = AnswerHeadConfig::new(6, 4, 2, 3).init(init).unwrap();
    assert_eq!(
        message(head.forward(zeros([1, 6]), wide([1, 4]))),
        expected("context")
    );
    assert_eq!(
        message(GatedTanh::new(3, 2, init).forward(wide([2, 3]))),
        expected("x")
    );
}
