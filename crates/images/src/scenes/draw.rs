//! The pixels of scenes.

use tiny_skia::{FillRule, Path, PathBuilder, Stroke, Transform};

use super::digits::{DIGITS, Step};
use super::{Colour, Kind, SceneConfig, SceneObject};
use crate::{Image, ImagesError, Mask, Random};

/// The image, and the pixels of each object.
pub(super) fn scene(
    config: &SceneConfig,
    objects: &[SceneObject],
    random: &mut Random,
) -> Result<(Image, Vec<Mask>), ImagesError> {
    let (height, width) = (config.height, config.width);
    let mut image = ground(config, random);
    let mut masks = vec![];
    for object in objects {
        let shade = shade(object.colour, random);
        let (rim, body) = coverage(object, height, width)?;
        // A darker rim around the object, so that it stands out from any texture.
        blend(&mut image, &rim, |ground| ground.map(|value| value / 3));
        blend(&mut image, &body, |_| shade);
        let mut mask = Mask::new(height, width)?;
        for (place, _) in body
            .iter()
            .enumerate()
            .filter(|&(_, &covered)| covered >= 128)
        {
            mask.set(place / width, place % width);
        }
        masks.push(mask);
    }
    Ok((image, masks))
}

/// `(ground * (255 - coverage) + colour * coverage) / 255`, rounded.
fn blend(image: &mut Image, coverage: &[u8], colour: impl Fn([u8; 3]) -> [u8; 3]) {
    for (pixel, &covered) in image.pixels_mut().chunks_exact_mut(3).zip(coverage) {
        if covered == 0 {
            continue;
        }
        let colour = colour([pixel[0], pixel[1], pixel[2]]);
        for (value, colour) in pixel.iter_mut().zip(colour) {
            let covered = u32::from(covered);
            let sum = u32::from(*value) * (255 - covered) + u32::from(colour) * covered;
            *value = ((sum + 127) / 255) as u8;
        }
    }
}

fn shade(colour: Colour, random: &mut Random) -> [u8; 3] {
    let middle = match colour {
        Colour::Red => [224, 48, 44],
        Colour::Orange => [245, 138, 24],
        Colour::Yellow => [248, 222, 56],
        Colour::Green => [58, 182, 74],
        Colour::Blue => [52, 120, 246],
        Colour::Purple => [178, 84, 214],
        Colour::White => [242, 242, 240],
    };
    middle.map(|value: i32| (value - 10 + random.below(21) as i32).clamp(0, 255) as u8)
}

/// How much of each pixel the object's rim and the object cover, from 0 to 255.
fn coverage(
    object: &SceneObject,
    height: usize,
    width: usize,
) -> Result<(Vec<u8>, Vec<u8>), ImagesError> {
    let failed = || ImagesError::Option {
        option: "the size of a scene",
        given: format!("{width} x {height}"),
        expected: "a size that can be drawn".to_owned(),
    };
    let path = outline(object.kind).ok_or_else(failed)?;
    let place = Transform::from_row(
        object.radius as f32,
        0.0,
        0.0,
        object.radius as f32,
        object.x as f32,
        object.y as f32,
    );
    let path = path.transform(place).ok_or_else(failed)?;
    let stroke = Stroke {
        width: (height.min(width) as f32 / 32.0).max(1.5),
        line_join: tiny_skia::LineJoin::Round,
        ..Stroke::default()
    };
    let rim = path.stroke(&stroke, 1.0).ok_or_else(failed)?;
    let drawn = |path: &Path| {
        let mut mask = tiny_skia::Mask::new(width as u32, height as u32).ok_or_else(failed)?;
        mask.fill_path(path, FillRule::Winding, true, Transform::identity());
        Ok(mask.take())
    };
    Ok((drawn(&rim)?, drawn(&path)?))
}

/// Corners of the star: the outer ones at 1.08 from the centre, the inner ones at 0.47, from the top on, clockwise.
const STAR: [(f32, f32); 10] = [
    (0.0, -1.0),
    (0.294, -0.324),
    (1.027, -0.254),
    (0.476, 0.235),
    (0.635, 0.954),
    (0.0, 0.58),
    (-0.635, 0.954),
    (-0.476, 0.235),
    (-1.027, -0.254),
    (-0.294, -0.324),
];
const SQUARE: [(f32, f32); 4] = [(-0.84, -0.84), (0.84, -0.84), (0.84, 0.84), (-0.84, 0.84)];
const TRIANGLE: [(f32, f32); 3] = [(0.0, -0.95), (1.0, 0.82), (-1.0, 0.82)];
const DIAMOND: [(f32, f32); 4] = [(0.0, -1.0), (0.72, 0.0), (0.0, 1.0), (-0.72, 0.0)];
const CROSS: [(f32, f32); 12] = [
    (-0.32, -0.95),
    (0.32, -0.95),
    (0.32, -0.32),
    (0.95, -0.32),
    (0.95, 0.32),
    (0.32, 0.32),
    (0.32, 0.95),
    (-0.32, 0.95),
    (-0.32, 0.32),
    (-0.95, 0.32),
    (-0.95, -0.32),
    (-0.32, -0.32),
];

/// The object with radius 1 around (0, 0), `y` downwards.
fn outline(kind: Kind) -> Option<Path> {
    let mut path = PathBuilder::new();
    let corners: &[(f32, f32)] = match kind {
        Kind::Circle => return PathBuilder::from_circle(0.0, 0.0, 0.95),
        Kind::Heart => {
            path.move_to(0.0, 0.95);
            path.cubic_to(-0.5, 0.5, -1.0, 0.15, -1.0, -0.35);
            path.cubic_to(-1.0, -1.0, -0.2, -1.05, 0.0, -0.5);
            path.cubic_to(0.2, -1.05, 1.0, -1.0, 1.0, -0.35);
            path.cubic_to(1.0, 0.15, 0.5, 0.5, 0.0, 0.95);
            path.close();
            return path.finish();
        }
        Kind::Digit(digit) => return glyph(DIGITS.get(usize::from(digit))?),
        Kind::Square => &SQUARE,
        Kind::Triangle => &TRIANGLE,
        Kind::Star => &STAR,
        Kind::Diamond => &DIAMOND,
        Kind::Cross => &CROSS,
    };
    let (&(x, y), rest) = corners.split_first()?;
    path.move_to(x, y);
    for &(x, y) in rest {
        path.line_to(x, y);
    }
    path.close();
    path.finish()
}

/// A digit, as high as the diameter and in the middle.
fn glyph(steps: &[Step]) -> Option<Path> {
    let mut path = PathBuilder::new();
    for &step in steps {
        match step {
            Step::Move(x, y) => {
                if !path.is_empty() {
                    path.close();
                }
                path.move_to(x.into(), y.into());
            }
            Step::Line(x, y) => path.line_to(x.into(), y.into()),
            Step::Curve(x1, y1, x, y) => path.quad_to(x1.into(), y1.into(), x.into(), y.into()),
        }
    }
    path.close();
    let path = path.finish()?;
    let bounds = path.bounds();
    let scale = 2.0 / bounds.height();
    let (x, y) = (
        bounds.left() + bounds.right(),
        bounds.top() + bounds.bottom(),
    );
    path.transform(Transform::from_row(
        scale,
        0.0,
        0.0,
        -scale,
        -x / 2.0 * scale,
        y / 2.0 * scale,
    ))
}

/// Muted, rather dark, of a random hue, with coarse and fine noise and sometimes a pattern; integers throughout.
fn ground(config: &SceneConfig, random: &mut Random) -> Image {
    let (height, width) = (config.height, config.width);
    let short = height.min(width);
    let grey = 50 + random.below(38) as i32;
    let base = [0; 3].map(|_: i32| grey - 12 + random.below(25) as i32);
    let strength = (config.texture * 256.0) as i32;
    let coarse = noise(height, width, (short / 4).max(2), random);
    let fine = noise(height, width, (short / 16).max(2), random);
    let pattern = random.below(5);
    // Periods from an eighth to a quarter of the shorter side.
    let period = (short / 8 + random.below(short / 8 + 1)).max(4);
    let depth = 14 + random.below(14) as i32;
    let mut pixels = Vec::with_capacity(height * width * 3);
    for y in 0..height {
        for x in 0..width {
            let place = y * width + x;
            let half = |at: usize| at % period < period / 2;
            let raised = match pattern {
                0 => half(y),
                1 => half(x + y),
                2 => half(x) != half(y),
                3 => {
                    let from = |at: usize| (at % period) as i32 * 2 - period as i32;
                    let (across, down) = (from(x), from(y));
                    4 * (across * across + down * down) < (period * period) as i32
                }
                _ => false,
            };
            let grain = random.below(25) as i32 - 12;
            let relief =
                coarse[place] / 2 + fine[place] / 4 + grain + if raised { depth } else { 0 };
            let value = |base: i32| (base + relief * strength / 256).clamp(0, 255) as u8;
            pixels.extend(base.map(value));
        }
    }
    Image::of(height, width, 3, pixels)
}

/// Values from -64 to 63 at the corners of a lattice, between them bilinear; `[height, width]`.
fn noise(height: usize, width: usize, cell: usize, random: &mut Random) -> Vec<i32> {
    let (rows, columns) = (height / cell + 2, width / cell + 2);
    let corners: Vec<i32> = (0..rows * columns)
        .map(|_| random.below(128) as i32 - 64)
        .collect();
    let between = |from: i32, to: i32, step: usize| from * (cell - step) as i32 + to * step as i32;
    let mut values = Vec::with_capacity(height * width);
    for y in 0..height {
        let lattice = &corners[y / cell * columns..][..2 * columns];
        let (upper, lower) = lattice.split_at(columns);
        let line = upper
            .iter()
            .zip(lower)
            .map(|(&up, &low)| between(up, low, y % cell));
        let line: Vec<i32> = line.collect();
        let places = line.windows(2).flat_map(|pair| {
            (0..cell).map(|step| between(pair[0], pair[1], step) / (cell * cell) as i32)
        });
        values.extend(places.take(width));
    }
    values
}
