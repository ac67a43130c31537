//! Turns any SVG of this crate into a PNG, the same on every machine.
//!
//! Fonts are built in: Noto Sans for Latin, Greek and Cyrillic, with Hebrew, Arabic, and symbols.
//! The system's fonts are searched only when a text has characters that these lack (Chinese,
//! Japanese, Korean, Indic scripts, emoji); a character that these lack too is drawn as a box.
//!
//! ```
//! use regard_view::png::{PngOptions, from_svg};
//!
//! let svg = r#"<svg xmlns="http://www.w3.org/2000/svg" width="4" height="3"/>"#;
//! let png = from_svg(svg, &PngOptions::default())?;
//! assert!(png.starts_with(b"\x89PNG"));
//! # Ok::<(), regard_view::png::PngError>(())
//! ```

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use regard_trace::Image;
use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::fontdb::{Database, ID, Source, Weight};
use resvg::usvg::{FontResolver, ImageHrefResolver, Options, Tree};

use crate::image::raster::resized;
use crate::svg::pixels as image_pixels;

/// How large the picture becomes.
#[derive(Clone, Debug, PartialEq)]
pub struct PngOptions {
    /// Pixels of the PNG for each pixel of the SVG. Default 2, crisp on dense screens.
    pub scale: f32,
    /// The most pixels; `scale` is lowered until the picture has no more. Default 40 million, which
    /// take 160 MB while drawing.
    pub max_pixels: u64,
}

impl Default for PngOptions {
    fn default() -> Self {
        Self {
            scale: 2.0,
            max_pixels: 40_000_000,
        }
    }
}

/// Why there is no PNG.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PngError {
    /// The text is no SVG.
    #[error("the SVG cannot be read: {reason}")]
    Svg {
        /// What the reader said.
        reason: String,
    },
    /// The scale is not a positive number.
    #[error("scale {scale}: must be a number above 0, such as 2")]
    Scale {
        /// The scale asked for.
        scale: f32,
    },
    /// `max_pixels` is 0, or memory for a picture of this size cannot be had.
    #[error(
        "a picture of {width} x {height} pixels with at most {max_pixels} cannot be made; raise max_pixels"
    )]
    Size {
        /// Pixels across.
        width: u32,
        /// Pixels down.
        height: u32,
        /// The most pixels allowed.
        max_pixels: u64,
    },
    /// The PNG encoder failed.
    #[error("the PNG cannot be encoded: {reason}")]
    Encode {
        /// What the encoder said.
        reason: String,
    },
}

const BUNDLED: [&[u8]; 5] = [
    include_bytes!("../fonts/NotoSans-Regular.ttf"),
    include_bytes!("../fonts/NotoSans-Bold.ttf"),
    include_bytes!("../fonts/NotoSansHebrew-Regular.ttf"),
    include_bytes!("../fonts/NotoSansArabic-Regular.ttf"),
    include_bytes!("../fonts/DejaVuSans-Symbols.ttf"),
];

static FONTS: LazyLock<Arc<Database>> = LazyLock::new(|| Arc::new(bundled()));

static FONTS_AND_SYSTEM: LazyLock<Arc<Database>> = LazyLock::new(|| {
    let mut fonts = bundled();
    fonts.load_system_fonts();
    fonts.set_sans_serif_family("Noto Sans");
    Arc::new(fonts)
});

fn bundled() -> Database {
    let mut fonts = Database::new();
    for font in BUNDLED {
        fonts.load_font_source(Source::Binary(Arc::new(font)));
    }
    fonts.set_sans_serif_family("Noto Sans");
    fonts
}

/// The SVG with its texts laid out in these fonts, and whether they lacked a character.
fn parse(svg: &str, fonts: Arc<Database>) -> Result<(Tree, bool), PngError> {
    let lacking = AtomicBool::new(false);
    let default = FontResolver::default_fallback_selector();
    // Labels are sans-serif, so of several fonts that have a character a sans-serif one is preferred.
    let unlike: Vec<ID> = fonts
        .faces()
        .filter(|face| {
            let name = &face.post_script_name;
            name.contains("Serif") || name.contains("Mono") || face.weight != Weight::NORMAL
        })
        .map(|face| face.id)
        .collect();
    let options = Options {
        font_family: "Noto Sans".to_owned(),
        fontdb: fonts,
        font_resolver: FontResolver {
            select_font: FontResolver::default_font_selector(),
            select_fallback: Box::new(|c, used, fonts| {
                let found = default(c, &[used, &unlike].concat(), fonts)
                    .or_else(|| default(c, used, fonts));
                lacking.fetch_or(found.is_none(), Ordering::Relaxed);
                found
            }),
        },
        image_href_resolver: ImageHrefResolver {
            resolve_data: ImageHrefResolver::default_data_resolver(),
            resolve_string: Box::new(|_, _| None),
        },
        ..Options::default()
    };
    let tree = Tree::from_str(svg, &options).map_err(|e| PngError::Svg {
        reason: e.to_string(),
    })?;
    drop(options);
    Ok((tree, lacking.into_inner()))
}

/// Draws an SVG into a PNG. Files that the SVG names are not read.
///
/// # Errors
/// See [`PngError`].
pub fn from_svg(svg: &str, options: &PngOptions) -> Result<Vec<u8>, PngError> {
    if !(options.scale.is_finite() && options.scale > 0.0) {
        return Err(PngError::Scale {
            scale: options.scale,
        });
    }
    let (mut tree, lacking) = parse(svg, FONTS.clone())?;
    if lacking {
        (tree, _) = parse(svg, FONTS_AND_SYSTEM.clone())?;
    }
    let size = tree.size();
    let (width, height) = pixels(size.width(), size.height(), options);
    let refused = PngError::Size {
        width,
        height,
        max_pixels: options.max_pixels,
    };
    if u64::from(width) * u64::from(height) > options.max_pixels {
        return Err(refused);
    }
    let mut pixmap = Pixmap::new(width, height).ok_or(refused)?;
    let transform =
        Transform::from_scale(width as f32 / size.width(), height as f32 / size.height());
    resvg::render(&tree, transform, &mut pixmap.as_mut());
    pixmap.encode_png().map_err(|e| PngError::Encode {
        reason: e.to_string(),
    })
}

/// An image as a PNG with at most `longest` pixels on a side: each is the mean of those that it covers.
///
/// ```
/// use regard_trace::Image;
/// use regard_view::png::from_image;
///
/// let image = Image::new(1, 2, 3, vec![255, 0, 0, 0, 0, 255])?;
/// assert!(from_image(&image, 1024)?.starts_with(b"\x89PNG"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`PngError::Encode`] if memory for it cannot be had.
pub fn from_image(image: &Image, longest: usize) -> Result<Vec<u8>, PngError> {
    let (height, width) = (image.height(), image.width());
    let side = height.max(width);
    let shown = |length: usize| match side > longest {
        true => (length * longest / side).max(1),
        false => length,
    };
    let (rows, columns) = (shown(height), shown(width));
    let shown = resized(image, rows, columns);
    image_pixels::png(rows, columns, |y, x| (shown[y * columns + x], 255)).ok_or_else(|| {
        PngError::Encode {
            reason: format!("an image of {height} x {width} pixels"),
        }
    })
}

/// The size of the picture: as the scale says, or the largest of the same shape that is allowed.
fn pixels(width: f32, height: f32, options: &PngOptions) -> (u32, u32) {
    let (width, height) = (f64::from(width), f64::from(height));
    let scaled = |length: f64| (length * f64::from(options.scale)).round().max(1.0);
    let max = options.max_pixels as f64;
    if scaled(width) * scaled(height) <= max {
        return (scaled(width) as u32, scaled(height) as u32);
    }
    let down = (max * height / width)
        .sqrt()
        .floor()
        .clamp(1.0, max.max(1.0));
    let across = (down * width / height).floor().min((max / down).floor());
    (across.max(1.0) as u32, down as u32)
}
