//! Pixels inside a document.

use std::fmt::Write;

use resvg::tiny_skia::{ColorU8, Pixmap};

use super::{base64, xml::coordinate};
use crate::colour::Rgb;

/// Appends a picture of `[rows, columns]` pixels with sharp edges at `[x, y, width, height]`: thousands of cells stay a small file.
/// Nothing for sides that no picture has.
pub(crate) fn embed(
    out: &mut String,
    place: [f64; 4],
    [rows, columns]: [usize; 2],
    pixel: impl Fn(usize, usize) -> Rgb,
) {
    let Some(address) = address(rows, columns, |row, column| (pixel(row, column), 255)) else {
        return;
    };
    let [x, y, width, height] = place.map(coordinate);
    let _ = writeln!(
        out,
        r#"<image x="{x}" y="{y}" width="{width}" height="{height}" preserveAspectRatio="none" image-rendering="optimizeSpeed" style="image-rendering: pixelated" href="{address}"/>"#
    );
}

/// The address of a PNG of these pixels, see [`png`].
pub(crate) fn address(
    rows: usize,
    columns: usize,
    pixel: impl Fn(usize, usize) -> (Rgb, u8),
) -> Option<String> {
    let png = png(rows, columns, pixel)?;
    Some(format!("data:image/png;base64,{}", base64::encode(&png)))
}

/// A PNG of these pixels, each a colour and how opaque it is; `None` for sides that no picture has, such as 0.
pub(crate) fn png(
    rows: usize,
    columns: usize,
    pixel: impl Fn(usize, usize) -> (Rgb, u8),
) -> Option<Vec<u8>> {
    let size = u32::try_from(columns).ok().zip(u32::try_from(rows).ok());
    let mut pixmap = size.and_then(|(width, height)| Pixmap::new(width, height))?;
    for (index, place) in pixmap.pixels_mut().iter_mut().enumerate() {
        let (Rgb(red, green, blue), opacity) = pixel(index / columns, index % columns);
        *place = ColorU8::from_rgba(red, green, blue, opacity).premultiply();
    }
    pixmap.encode_png().ok()
}
