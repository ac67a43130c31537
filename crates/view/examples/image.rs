//! Draws what models look at in images, from drawn scenes and made-up weights, one of each picture, into a folder:
//! `cargo run --release -p regard-view --example image -- FOLDER`

use std::error::Error;
use std::fs;
use std::path::Path;

use regard_view::choice::{Choice, Pick};
use regard_view::gates::{self, Gates};
use regard_view::image::{ImageChoice, ImageOptions, ImagePicture, Overlay};
use regard_view::png::{self, PngOptions};
use regard_view::terminal::{Colour, TerminalOptions};

#[path = "../tests/common/scenes.rs"]
mod scenes;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().nth(1).unwrap_or_else(|| "images".into());
    let folder = Path::new(&folder);
    fs::create_dir_all(folder)?;
    let usual = ImageChoice::default();
    let heads = ImageChoice {
        maps: Choice {
            head: Pick::All,
            ..Choice::default()
        },
        ..usual
    };
    let layers = ImageChoice {
        maps: Choice {
            layer: Pick::All,
            ..Choice::default()
        },
        ..usual
    };
    let cell = ImageChoice {
        query: Pick::One(30),
        ..heads
    };
    let rollout = ImageChoice {
        rollout: true,
        ..usual
    };
    let caption = scenes::caption(64, 64, 8, 8);
    let pictures = [
        ("caption-64", caption.clone(), usual),
        ("caption-32", scenes::caption(32, 32, 8, 8), usual),
        ("caption-1024", scenes::caption(1024, 1024, 14, 14), usual),
        ("caption-wide", scenes::caption(75, 200, 7, 11), usual),
        ("caption-hard", scenes::hard_caption(64, 8), usual),
        ("vit-heads", scenes::vit(64, 8, 4, 6), heads),
        ("vit-cell", scenes::vit(64, 8, 4, 6), cell),
        ("vit-layers", scenes::vit(64, 8, 4, 6), layers),
        ("vit-rollout", scenes::vit(64, 8, 4, 6), rollout),
        ("objects-64", scenes::detector(64, 8), usual),
        ("objects-1024", scenes::detector(1024, 16), usual),
        ("question", scenes::question(64), usual),
        ("masks", scenes::masks(64), layers),
    ];
    for (name, trace, choice) in &pictures {
        let picture = ImagePicture::of(trace, choice)?;
        save(folder, name, &picture.svg(&ImageOptions::default()))?;
        let by_cell = ImageOptions {
            overlay: Overlay::ByCell,
            ..ImageOptions::default()
        };
        save(folder, &format!("{name}-by-cell"), &picture.svg(&by_cell))?;
        for (suffix, colour) in [
            ("true", Colour::TrueColour),
            ("256", Colour::Palette256),
            ("ascii", Colour::Ascii),
        ] {
            let options = TerminalOptions {
                width: 100,
                colour,
                ..TerminalOptions::default()
            };
            fs::write(
                folder.join(format!("{name}-{suffix}.txt")),
                picture.text(&options),
            )?;
        }
    }
    let own_scale = ImageOptions {
        own_scale: true,
        ..ImageOptions::default()
    };
    save(
        folder,
        "caption-own-scale",
        &ImagePicture::of(&caption, &usual)?.svg(&own_scale),
    )?;

    let of_classes = Gates::new("stage 3, block 2", scenes::gates(64))?;
    let of_many = Gates::new("stage 4, block 1", scenes::gates(512))?;
    let single = Gates::new(
        "stage 1, block 1",
        scenes::gates(16).into_iter().take(1).collect(),
    )?;
    let all = [single, of_classes, of_many];
    save(folder, "gates", &gates::stacked(&all))?;
    let text: String = all
        .iter()
        .map(|gates| gates.text(&TerminalOptions::default()))
        .collect();
    fs::write(folder.join("gates.txt"), text)?;
    Ok(())
}

fn save(folder: &Path, name: &str, svg: &str) -> Result<(), Box<dyn Error>> {
    fs::write(folder.join(format!("{name}.svg")), svg)?;
    let png = png::from_svg(svg, &PngOptions::default())?;
    fs::write(folder.join(format!("{name}.png")), png)?;
    Ok(())
}
