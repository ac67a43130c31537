//! Draws scenes on one sheet, with their boxes and masks beside them, and writes what is said and asked of them.
//!
//! ```sh
//! cargo run --release -p regard-images --example scenes -- OUT [SIZE] [SEED]
//! ```
//!
//! writes `OUT/scenes.png` (24 scenes, each twice: as it is, and with its boxes and masks), `OUT/scenes.txt`, and each scene alone as
//! `OUT/00.png` to `OUT/23.png`.

use std::error::Error;
use std::fmt::Write as _;

use regard_images::Image;
use regard_images::scenes::{Scene, SceneConfig};

const COLUMNS: usize = 4;
const ROWS: usize = 6;
const GAP: usize = 8;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let out = arguments
        .next()
        .ok_or("give a folder to write to: scenes OUT [SIZE] [SEED]")?;
    let size = arguments.next().map_or(Ok(64), |size| size.parse())?;
    let seed = arguments.next().map_or(Ok(1), |seed| seed.parse())?;
    let config = SceneConfig {
        height: size,
        width: size,
        ..SceneConfig::default()
    };

    // Small images are shown larger.
    let scale = (128 / size).max(1);
    let cell = size * scale;
    let (width, height) = (
        COLUMNS * (2 * cell + 2 + GAP) + GAP,
        ROWS * (cell + GAP) + GAP,
    );
    let mut sheet = Image::filled(height, width, &[255; 3])?;
    let mut text = String::new();
    std::fs::create_dir_all(&out)?;
    for i in 0..ROWS * COLUMNS {
        let scene = Scene::generate(seed, i as u64, &config)?;
        scene.image.save_png(format!("{out}/{i:02}.png"))?;
        let (top, left) = (
            GAP + i / COLUMNS * (cell + GAP),
            GAP + i % COLUMNS * (2 * cell + 2 + GAP),
        );
        place(&mut sheet, &scene.image, top, left, scale);
        place(&mut sheet, &marked(&scene), top, left + cell + 2, scale);

        writeln!(text, "{:2}  {}", i, scene.caption.text)?;
        let words = scene.caption.words().map(|(word, object)| match object {
            Some(object) => format!("{word}[{object}]"),
            None => word.to_owned(),
        });
        writeln!(text, "    {}", words.collect::<Vec<_>>().join(" "))?;
        for question in &scene.questions {
            let (asked, answer) = (&question.phrase.text, &question.answer);
            writeln!(
                text,
                "    {asked} {answer} (objects {:?})",
                question.objects
            )?;
        }
    }
    sheet.save_png(format!("{out}/scenes.png"))?;
    std::fs::write(format!("{out}/scenes.txt"), text)?;
    println!("{out}/scenes.png and {out}/scenes.txt");
    Ok(())
}

/// The scene in grey, with each mask in the colour of its object and its box around it.
fn marked(scene: &Scene) -> Image {
    let original = scene.image.clone();
    let mut marked = original.clone().into_grey().into_colour();
    let width = marked.width();
    for (object, mask) in scene.objects.iter().zip(&scene.masks) {
        let inside = mask.iter().enumerate().filter(|&(_, set)| set);
        for (place, _) in inside {
            let colour = &original.pixels()[3 * place..3 * place + 3];
            marked.pixels_mut()[3 * place..3 * place + 3].copy_from_slice(colour);
        }
        let [left, top] = [object.bounds.x, object.bounds.y].map(|side| side as usize);
        let (right, bottom) = (
            left + object.bounds.width as usize - 1,
            top + object.bounds.height as usize - 1,
        );
        let across = (left..=right).flat_map(|x| [(top, x), (bottom, x)]);
        for (y, x) in across.chain((top..=bottom).flat_map(|y| [(y, left), (y, right)])) {
            let place = 3 * (y * width + x);
            marked.pixels_mut()[place..place + 3].copy_from_slice(&[255, 0, 255]);
        }
    }
    marked
}

/// Copies an image to a place of the sheet, each pixel as a square.
fn place(sheet: &mut Image, image: &Image, top: usize, left: usize, scale: usize) {
    let width = sheet.width();
    for y in 0..image.height() * scale {
        for x in 0..image.width() * scale {
            let from = 3 * (y / scale * image.width() + x / scale);
            let to = 3 * ((top + y) * width + left + x);
            sheet.pixels_mut()[to..to + 3].copy_from_slice(&image.pixels()[from..from + 3]);
        }
    }
}
