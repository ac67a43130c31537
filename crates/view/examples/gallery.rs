//! Draws every kind of picture, from made-up traces, into a folder:
//! `cargo run --release -p regard-view --example gallery -- FOLDER`

use std::fs;
use std::path::Path;

use regard_trace::Trace;
use regard_view::Heatmap;
use regard_view::chart::{Chart, Point, Series};
use regard_view::png::{self, PngOptions};
use regard_view::svg::{self, SvgOptions};
use regard_view::terminal::{self, Colour, TerminalOptions};

#[path = "../tests/common/samples.rs"]
mod samples;

fn main() -> std::io::Result<()> {
    let folder = std::env::args().nth(1).unwrap_or_else(|| "gallery".into());
    let folder = Path::new(&folder);
    fs::create_dir_all(folder)?;
    let large = |q, k| Trace::new("rnnsearch", "", "").with_map(samples::sized(q, k, 1));
    let traces = [
        ("german", samples::german().merge_words()),
        ("subwords", samples::german()),
        ("arabic", samples::arabic()),
        ("hebrew", samples::hebrew()),
        ("chinese", samples::chinese()),
        ("one", samples::one_token()),
        ("hostile", samples::hostile()),
        ("60x70", large(60, 70)),
        ("300x300", large(300, 300)),
    ];
    for (name, trace) in &traces {
        for width in [40, 60, 80, 120] {
            for (suffix, colour) in [
                ("true", Colour::TrueColour),
                ("256", Colour::Palette256),
                ("ascii", Colour::Ascii),
            ] {
                let height = (*name == "300x300").then_some(60);
                let options = TerminalOptions {
                    width,
                    height,
                    colour,
                    ..Default::default()
                };
                let picture = terminal::trace(trace, &options);
                fs::write(folder.join(format!("{name}-{width}-{suffix}.txt")), picture)?;
            }
        }
    }
    for (name, trace) in &traces {
        save(folder, name, &svg::trace(trace, &SvgOptions::default()))?;
    }
    let traces_file = folder.join("nbest.safetensors");
    regard_trace::write(&traces_file, &[samples::german(), samples::german_second()])
        .map_err(std::io::Error::other)?;
    let heads: Vec<Heatmap> = samples::transformer()
        .maps
        .iter()
        .flat_map(Heatmap::heads_of)
        .collect();
    save(
        folder,
        "transformer",
        &svg::grid(&heads, &SvgOptions::default()),
    )?;
    let bleu = |name: &str, values: [f64; 6]| {
        let at =
            |(i, y): (usize, f64)| Point::new(i as f64 * 10.0 + 5.0, y).between(y - 1.6, y + 1.7);
        Series::new(name, values.into_iter().enumerate().map(at).collect())
    };
    let chart = Chart::new(
        "BLEU by source length (made-up numbers)",
        "source length in words",
        "BLEU",
    )
    .with(bleu("rnnsearch", [37.8, 39.1, 38.4, 38.0, 37.1, 36.9]))
    .with(bleu("luong", [37.0, 38.3, 37.5, 36.8, 36.4, 36.0]))
    .with(bleu(
        "seq2seq (no attention)",
        [33.0, 29.1, 22.4, 15.7, 11.0, 8.9],
    ))
    .x_names((0..6).map(|i| {
        (
            f64::from(i) * 10.0 + 5.0,
            format!("{}-{}", i * 10 + 1, i * 10 + 10),
        )
    }))
    .y_from_zero();
    save(folder, "chart", &chart.svg())?;
    let loss = |name: &str, scale: f64| {
        let at = |step: i32| {
            Point::new(
                f64::from(step * 50),
                1.5 + scale * (-f64::from(step) / 40.0).exp(),
            )
        };
        Series::new(name, (0..240).map(at).collect())
    };
    let curve = Chart::new("Loss", "steps", "nats per token")
        .with(loss("training", 5.5))
        .with(loss("validation", 6.0));
    save(folder, "loss", &curve.svg())?;
    Ok(())
}

fn save(folder: &Path, name: &str, picture: &str) -> std::io::Result<()> {
    fs::write(folder.join(format!("{name}.svg")), picture)?;
    let png = png::from_svg(picture, &PngOptions::default()).map_err(std::io::Error::other)?;
    fs::write(folder.join(format!("{name}.png")), png)
}
