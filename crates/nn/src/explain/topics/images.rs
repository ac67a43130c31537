//! Attention on a map of 4 × 4 places, and an image of 4 × 4 pixels as patches.

use burn::{module::Param, tensor::Tensor};

use super::{Lesson, Matrix, drawn, named, numbered, rows, short, tensor};
use crate::{
    AttentionOptions, Observe, Path,
    explain::{ExplainError, Quantity},
    heads::MultiHeadConfig,
    record::{Record, recorded},
    vision::{
        CbamConfig, MaskBranchConfig, NonLocalConfig, PatchEmbeddingConfig, SqueezeExciteConfig,
    },
};

use Quantity::{Scores, Weights};

/// Height and width.
const SIDE: usize = 4;

/// A spot in one channel, a line in the other: the rows of one map below those of the other.
fn channels() -> Matrix {
    [
        [0.0, 0.0, 0.0, 0.0],
        [0.0, 2.0, 1.0, 0.0],
        [0.0, 1.0, 1.0, 0.0],
        [0.0, 0.0, 0.0, 0.0],
        [0.0, 0.0, 0.0, 1.0],
        [0.0, 0.0, 0.0, 1.0],
        [0.0, 0.0, 0.0, 1.0],
        [0.0, 0.0, 0.0, 1.0],
    ]
    .map(Vec::from)
    .to_vec()
}

/// `[1, 2, 4, 4]`
fn map() -> Tensor<4> {
    tensor(channels().concat(), [1, 2, SIDE, SIDE])
}

impl Lesson {
    /// Square maps, the rows of one channel below those of the other: a step for each.
    fn maps(&mut self, quantity: Quantity, name: &str, formula: &str, values: &Matrix) {
        let side = values[0].len();
        let (down, across) = (numbered("row ", side), numbered("", side));
        for (channel, part) in values.chunks(side).enumerate() {
            let name = match values.len() / side {
                1 => name.to_owned(),
                _ => format!("{name}, channel {}", channel + 1),
            };
            self.step(quantity, name, formula, [&down, &across], &part.to_vec());
        }
    }

    /// The small network over channels, from its summaries `of` to its scores.
    fn excitation(&mut self, record: &Record, of: &[&str]) {
        let (of, channels) = (named(of), numbered("ch. ", 2));
        let [squeezed, hidden, scores] =
            ["squeezed", "hidden", "scores"].map(|name| record.rows(name));
        let units = numbered("unit ", hidden[0].len());
        let formula = "z, a number a channel";
        self.step(
            Quantity::Matrix,
            "squeeze",
            formula,
            [&of, &channels],
            &squeezed,
        );
        self.row();
        self.step(
            Quantity::Matrix,
            "hidden",
            "ReLU(W_1 z)",
            [&of, &units],
            &hidden,
        );
        let formula = "W_2 ReLU(W_1 z)";
        self.step(Scores, "channel scores", formula, [&of, &channels], &scores);
    }

    /// A number for each channel.
    fn gate(&mut self, name: &str, formula: &str, gate: &Tensor<4>) {
        let gate = vec![rows(gate.clone()).concat()];
        self.step(
            Weights,
            name,
            formula,
            [&named(&["gate"]), &numbered("ch. ", 2)],
            &gate,
        );
    }
}

const GIVEN: Quantity = Quantity::Matrix;

pub(super) fn squeeze_excite(lesson: &mut Lesson) -> Result<(), ExplainError> {
    let config = SqueezeExciteConfig::new(2).with_reduction(1);
    let layer = drawn(2.0, |initializer| config.init(initializer))?;
    let (attended, record) = recorded(|| layer.attend(map()));
    let attended = attended?;
    lesson.maps(GIVEN, "map", "as given", &channels());
    lesson.excitation(&record, &["mean"]);
    lesson.gate("gate", "s = σ(scores)", &attended.gate);
    lesson.row();
    lesson.maps(GIVEN, "output", "s_c x_c", &rows(attended.output));
    let gate = rows(attended.gate).concat();
    lesson.remark(format!(
        "Channel 1 is multiplied by {}, channel 2 by {}, the same at all places. Gates need not sum to 1.",
        short(gate[0]),
        short(gate[1])
    ));
    Ok(())
}

pub(super) fn cbam(lesson: &mut Lesson) -> Result<(), ExplainError> {
    let kernel = lesson.number("kernel");
    let config = CbamConfig::new(2).with_reduction(1).with_kernel(kernel);
    let layer = drawn(1.0, |initializer| config.init(initializer))?;
    let (attended, record) = recorded(|| layer.attend(map()));
    let attended = attended?;
    lesson.maps(GIVEN, "map", "as given", &channels());
    lesson.excitation(&record, &["mean", "maximum"]);
    lesson.gate(
        "channel gate",
        "M_c = σ(sum of both scores)",
        &attended.channel_gate,
    );
    let summary = record.rows("summary");
    let (mean, maximum) = summary.split_at(SIDE);
    lesson.row();
    lesson.maps(GIVEN, "mean over channels", "of x' = M_c x", &mean.to_vec());
    lesson.maps(
        GIVEN,
        "maximum over channels",
        "of x' = M_c x",
        &maximum.to_vec(),
    );
    let formula = format!("M_s = σ(convolution of both, {kernel} × {kernel})");
    lesson.maps(
        Weights,
        "spatial gate",
        &formula,
        &rows(attended.spatial_gate),
    );
    lesson.row();
    lesson.maps(GIVEN, "output", "M_s x'", &rows(attended.output));
    lesson.remark("First what to look at (a number a channel), then where (a number a place).");
    Ok(())
}

pub(super) fn non_local(lesson: &mut Lesson) -> Result<(), ExplainError> {
    let config = NonLocalConfig::new(2).with_inner(Some(2));
    let mut layer = drawn(2.0, |initializer| config.init(initializer))?;
    // It starts at 0, where the block would show nothing.
    layer.w_z.weight = Param::from_tensor(tensor(vec![1.0, 0.0, 0.0, 1.0], [2, 2]));
    let (attended, record) = recorded(|| layer.attend(map()));
    let attended = attended?;
    let cells = (1..=SIDE).flat_map(|row| (1..=SIDE).map(move |column| format!("{row},{column}")));
    let places: Vec<String> = cells.collect();
    let on_map = |row: &[f64]| row.chunks(SIDE).map(<[f64]>::to_vec).collect();
    lesson.maps(GIVEN, "map", "as given", &channels());
    let formula = "θ(x_i)ᵀ φ(x_j), each place (row,column) with each";
    let sides = [places.as_slice(), &places];
    lesson.step(
        Quantity::Between,
        "scores",
        formula,
        sides,
        &record.rows("scores"),
    );
    let weights = rows(attended.weights);
    lesson.row();
    lesson.step(
        Weights,
        "weights",
        "softmax of each row: a row and a column for each place",
        sides,
        &weights,
    );
    let asked = SIDE + 1; // row 2, column 2
    let name = format!("row {} on the map", places[asked]);
    lesson.maps(
        Weights,
        &name,
        "what this place looks at",
        &on_map(&weights[asked]),
    );
    let read = tensor(record.rows("context").concat(), [SIDE * SIDE, 2]).transpose();
    lesson.row();
    lesson.maps(
        GIVEN,
        "read",
        "y_i = Σ_j weight g(x_j)",
        &on_map(&rows(read).concat()),
    );
    lesson.row();
    let formula = "z_i = W_z y_i + x_i, W_z = 1 here";
    lesson.maps(GIVEN, "output", formula, &rows(attended.output));
    lesson.remark("Each place reads all others at once, however far; a convolution sees its neighbours alone.");
    lesson.remark("In training W_z starts at 0, so that the block at first changes nothing.");
    Ok(())
}

pub(super) fn residual(lesson: &mut Lesson) -> Result<(), ExplainError> {
    let config = MaskBranchConfig::new(2).with_levels(1).with_reduction(1);
    let branch = drawn(1.0, |initializer| config.init(initializer))?;
    let (attended, record) = recorded(|| branch.attend(map(), map()));
    let attended = attended?;
    for (quantity, name, formula, values) in [
        (
            GIVEN,
            "trunk",
            "T, as given; the mask branch reads it too",
            channels(),
        ),
        (
            GIVEN,
            "pooled",
            "largest of 3 × 3, every second place: down",
            record.rows("pooled"),
        ),
        (
            GIVEN,
            "bottom",
            "after residual units, at the smallest size",
            record.rows("bottom"),
        ),
        (
            GIVEN,
            "enlarged",
            "interpolated to the size of T: up",
            record.rows("enlarged"),
        ),
        (
            Scores,
            "scores",
            "after two 1 × 1 convolutions",
            record.rows("scores"),
        ),
        (Weights, "mask", "M = σ(scores)", rows(attended.gate)),
        (GIVEN, "output", "H = (1 + M) ∘ T", rows(attended.output)),
    ] {
        // Down and up in one row.
        if name != "bottom" {
            lesson.row();
        }
        lesson.maps(quantity, name, formula, &values);
    }
    lesson.remark(
        "A mask of 0 leaves the trunk as it is and a mask of 1 doubles it, so that many such modules can follow each other.",
    );
    Ok(())
}

pub(super) fn patches(lesson: &mut Lesson) -> Result<(), ExplainError> {
    let image = channels()[..SIDE].to_vec();
    let patch = lesson.number("patch");
    let (pixels, count) = (patch * patch, (SIDE / patch).pow(2));
    let config = PatchEmbeddingConfig::new([SIDE; 2], [patch; 2], 1, 3);
    let mut embedding = drawn(1.0, |initializer| config.init(initializer))?;
    // They start near 0.
    let learned = (0..3 * (1 + count))
        .map(|i| (i % 4) as f64 / 10.0)
        .collect();
    embedding.positions = Some(Param::from_tensor(tensor(learned, [1 + count, 3])));
    let input = tensor(image.concat(), [1, 1, SIDE, SIDE]);
    let (tokens, record) = recorded(|| embedding.forward(input));
    let tokens = tokens?;
    let layer = drawn(4.0, |initializer| {
        MultiHeadConfig::new(3, 1).init(initializer)
    })?;
    let options = AttentionOptions::new(Observe::Weights).path(Path::Plain);
    let read = layer.forward(tokens.clone(), options)?;
    let names = [named(&["class"]), numbered("patch ", count)].concat();
    let positions = embedding
        .positions
        .iter()
        .flat_map(|table| rows(table.val()));
    lesson.maps(GIVEN, "image", "4 × 4 pixels, as given", &image);
    lesson.matrix(
        "patches",
        format!("{patch} × {patch} pixels each, row by row"),
        &names[1..],
        &record.rows("patches"),
    );
    let matrix = rows(embedding.projection.weight.val());
    let sides = [numbered("pixel ", pixels), numbered("", matrix[0].len())];
    lesson.step(
        GIVEN,
        "E",
        "learned: from pixels to a token",
        [&sides[0], &sides[1]],
        &matrix,
    );
    lesson.row();
    lesson.matrix(
        "tokens",
        "x_class (at first 0); patch E + b",
        &names,
        &record.rows("tokens"),
    );
    lesson.matrix("positions", "E_pos, learned", &names, &positions.collect());
    lesson.matrix("input", "tokens + E_pos", &names, &rows(tokens));
    if let Some(weights) = read.attended.weights {
        let weights = rows(weights);
        lesson.row();
        let formula = "of one head of self-attention over all tokens";
        lesson.step(Weights, "weights", formula, [&names, &names], &weights);
        let of_class = tensor(weights[0].clone(), [1, 1, 1 + count]);
        let on_image = rows(embedding.on_image(of_class)?);
        lesson.maps(
            Weights,
            "class token",
            "its row, laid out as the image",
            &on_image,
        );
        lesson.remark(format!(
            "The class token stands for no patch: what it reads of them ({} of its weight) is what a classifier gets.",
            short(weights[0][1..].iter().sum())
        ));
    }
    lesson.matrix("output", "of the head", &names, &rows(read.output));
    lesson.remark(
        "Without positions the patches would have no order: attention treats its tokens as a set.",
    );
    Ok(())
}
