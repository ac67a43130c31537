//! One Transformer block, from its input to its output.

use super::{Lesson, drawn, rows, sentence, sequence, side_by_side};
use crate::{
    Path,
    dropout::DropoutRng,
    explain::{ExplainError, Quantity},
    record::recorded,
    transformer::{StackConfig, StackOptions},
};

pub(super) fn block(lesson: &mut Lesson) -> Result<(), ExplainError> {
    let (words, x) = sentence();
    let heads = lesson.number("heads");
    let config = StackConfig {
        feed_forward: 6,
        ..StackConfig::new(4, heads)
    };
    let stack = drawn(1.0, |initializer| config.encoder(1, initializer))?;
    let options = StackOptions {
        path: Path::Plain,
        each_layer: true,
        ..StackOptions::default()
    };
    let (read, record) =
        recorded(|| stack.forward(sequence(&x), None, &options, &mut DropoutRng::none()));
    let output = read?
        .layers
        .into_iter()
        .next()
        .map(rows)
        .unwrap_or_default();
    lesson.matrix("x", "as given, a row for each word", &words, &x);
    let reported = |name: &str| record.rows(name);
    let formula = "(x - mean) / √(variance + ε), each row for itself";
    lesson.matrix("norm", formula, &words, &reported("attention input"));
    lesson.row();
    for (head, weights) in reported("weights").chunks(words.len()).enumerate() {
        let name = format!("head {}: weights", head + 1);
        let sides = [words.as_slice(), &words];
        lesson.step(
            Quantity::Weights,
            name,
            format!("softmax(Q Kᵀ / √{})", x[0].len() / heads),
            sides,
            &weights.to_vec(),
        );
    }
    let formula = format!("{} W_O", side_by_side(heads));
    lesson.matrix("attention", formula, &words, &reported("attention output"));
    lesson.row();
    let formula = "x + attention: what was there stays";
    lesson.matrix("first sum", formula, &words, &reported("after attention"));
    lesson.matrix(
        "second norm",
        "of the first sum",
        &words,
        &reported("feed-forward input"),
    );
    lesson.row();
    let formula = "ReLU(W_1 norm + b_1), each word for itself";
    lesson.matrix("hidden", formula, &words, &reported("activations"));
    lesson.matrix(
        "feed-forward",
        "W_2 hidden + b_2",
        &words,
        &reported("feed-forward output"),
    );
    let formula = "first sum + feed-forward: what the next block reads";
    lesson.matrix("output", formula, &words, &output);
    lesson.remark("Words exchange numbers in attention alone; norms and feed-forward treat each row for itself.");
    lesson.remark("Matrices are random, rounded to one decimal; biases are 0 and norms have scale 1, as before training.");
    Ok(())
}
