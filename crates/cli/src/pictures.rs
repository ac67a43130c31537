//! What a model looked at, in the terminal and as files.

use std::{
    env,
    io::{self, IsTerminal},
    ops::Range,
    path::{Path, PathBuf},
};

use regard_serve::Generation;
use regard_trace::{LongMap, LongTrace, Tokens, Trace};
use regard_view::{
    Heatmap,
    choice::{Choice, Pick},
    gates::{self, Gates, GatesError},
    html,
    image::{ImageChoice, ImageError, ImagePicture},
    long,
    png::{self, PngOptions},
    svg::{self, SvgOptions},
    terminal::{self, Colour, Direction, TerminalOptions},
};

use crate::{
    arguments::{Drawing, OverImage, PictureFiles},
    failure::{CommandError, Failure},
    output,
    progress::Status,
};

mod page;
mod show;

pub use show::Shown;

/// One translation, with its line and its rank.
pub struct Entry {
    /// The source line, counted from 1.
    pub line: usize,
    /// The rank among the translations of the line, counted from 1.
    pub rank: usize,
    /// What the model looked at, with maps between subwords.
    pub trace: Trace,
    /// How the translations of the line were searched for, beside the first of them.
    pub generation: Option<Generation>,
}

impl Entry {
    /// One without a tree of the search.
    pub fn new(line: usize, rank: usize, trace: Trace) -> Self {
        Self {
            line,
            rank,
            trace,
            generation: None,
        }
    }
}

/// The most traces that are kept in memory until they are written.
const MOST_KEPT: usize = 10_000;

/// The traces that are kept until the end, to be written as pictures and as a file.
pub struct Kept<'a> {
    files: &'a PictureFiles,
    over_image: OverImage,
    traces: Option<&'a Path>,
    entries: Vec<Entry>,
}

impl<'a> Kept<'a> {
    /// Without traces; what is written must not take the place of the files of `model`.
    ///
    /// # Errors
    /// A file that could not be written, or one of the model's.
    pub fn new(
        files: &'a PictureFiles,
        traces: &'a Option<PathBuf>,
        model: Option<impl AsRef<Path>>,
    ) -> Result<Self, Failure> {
        expect_writable(files, traces)?;
        let model = model.into_iter().flat_map(output::model_files);
        expect_apart(files, traces, model, true)?;
        Ok(Self {
            files,
            over_image: OverImage::default(),
            traces: traces.as_deref(),
            entries: vec![],
        })
    }

    /// Whether anything will be written.
    pub fn is_wanted(&self) -> bool {
        self.files.any() || self.traces.is_some()
    }

    /// Refuses files that would take the place of those that are `used`; `several` texts or images have numbered pictures.
    ///
    /// # Errors
    /// As [`output::expect_apart`]'s.
    pub fn expect_apart<P: AsRef<Path>>(
        &self,
        used: impl IntoIterator<Item = P>,
        several: bool,
    ) -> Result<(), Failure> {
        let traces = self.traces.map(Path::to_owned);
        expect_apart(self.files, &traces, used, several)
    }

    /// Keeps a trace, if anything will be written.
    ///
    /// # Errors
    /// More traces than anyone can look at; a choice of maps that the first one does not have.
    pub fn push(&mut self, line: usize, rank: usize, trace: &Trace) -> Result<(), Failure> {
        if !self.is_wanted() {
            return Ok(());
        }
        if self.entries.len() == MOST_KEPT {
            return Err(CommandError::TooManyPictures { limit: MOST_KEPT }.into());
        }
        if self.entries.is_empty() && self.files.draws_chosen() {
            Figure::of(trace, self.files.choice())?.expect_image(self.over_image)?;
        }
        self.entries.push(Entry::new(line, rank, trace.clone()));
        Ok(())
    }

    /// Whether a page will be written, which shows how a text was searched for.
    pub fn shows_search(&self) -> bool {
        self.files.html.is_some()
    }

    /// Keeps how the translations of a line, which were kept before, were searched for.
    pub fn searched(&mut self, line: usize, generation: Generation) {
        let is_best = |entry: &&mut Entry| entry.line == line && entry.rank == 1;
        if let Some(entry) = self.entries.iter_mut().rev().find(is_best) {
            entry.generation = Some(generation);
        }
    }

    /// Writes the traces and the pictures.
    ///
    /// # Errors
    /// Nothing to draw, or a file that cannot be written.
    pub fn write(&self) -> Result<(), Failure> {
        if let Some(path) = self.traces {
            let traces = self.entries.iter().map(|entry| entry.trace.clone());
            regard_trace::write(path, &traces.collect::<Vec<_>>())?;
        }
        write(self.files, self.over_image, &self.entries)
    }

    /// Writes the files of what was done before `error`, which ends the command.
    ///
    /// # Errors
    /// A file that cannot be written, or `error`.
    pub fn end(&self, error: Failure) -> Result<(), Failure> {
        let mut traces = self.entries.iter().map(|entry| &entry.trace);
        if traces.any(|trace| !trace.maps.is_empty()) {
            self.write()?;
        }
        Err(error)
    }
}

/// Refuses a drawing whose files could not be written, or would take the place of files that are `used`, or of each other, before the work
/// whose result it is to show.
///
/// # Errors
/// What the system says of the first of them; as [`output::expect_apart`]'s.
pub fn expect_drawable<P: AsRef<Path>>(
    drawing: &Drawing,
    used: impl IntoIterator<Item = P>,
) -> Result<(), Failure> {
    let mut files = drawing.files();
    files.try_for_each(|path| output::expect_writable(path))?;
    output::expect_apart(used, drawing.files().map(|path| (path, false)))
}

/// Refuses files that could not be written, before the work whose results they are to hold.
///
/// # Errors
/// What the system says of the first of them.
pub fn expect_writable(files: &PictureFiles, traces: &Option<PathBuf>) -> Result<(), Failure> {
    let all = [&files.svg, &files.png, &files.html, traces];
    let mut all = all.into_iter().flatten();
    all.try_for_each(|path| output::expect_writable(path))?;
    expect_apart(files, traces, None::<&Path>, true)
}

/// Refuses pictures and traces that would take the place of files that are `used`, or of each other; `several` texts or images have
/// numbered pictures.
///
/// # Errors
/// As [`output::expect_apart`]'s.
pub fn expect_apart<P: AsRef<Path>>(
    files: &PictureFiles,
    traces: &Option<PathBuf>,
    used: impl IntoIterator<Item = P>,
    several: bool,
) -> Result<(), Failure> {
    let drawn = [&files.svg, &files.png].map(|path| (path, several));
    let whole = [&files.html, traces].map(|path| (path, false));
    let all = drawn.into_iter().chain(whole);
    let all = all.filter_map(|(path, numbered)| Some((path.as_ref()?, numbered)));
    output::expect_apart(used, all)
}

/// Refuses a choice of maps where nothing is drawn: neither a picture nor, if it is not `shown` by the option `show`, in the terminal.
///
/// # Errors
/// A usage error.
pub fn expect_drawn(files: &PictureFiles, shown: bool, show: &str) -> Result<(), Failure> {
    match files.choice().is_made() && !shown && !files.draws_chosen() {
        false => Ok(()),
        true => Err(Failure::Usage(format!(
            "--map, --layer and --head say what to draw, but nothing is drawn; add --png FILE, --svg FILE or {show}"
        ))),
    }
}

/// Refuses options of maps over an image where no figure is drawn.
///
/// # Errors
/// A usage error.
pub fn expect_figure(files: &PictureFiles, over_image: OverImage) -> Result<(), Failure> {
    match over_image.given() {
        Some(option) if !files.draws_chosen() => Err(Failure::Usage(format!(
            "{option} says how --png and --svg draw maps over an image; add one of them, or leave it out"
        ))),
        _ => Ok(()),
    }
}

/// Writes one picture, an SVG, in the forms that are asked for; a page has its numbers as `text`, too.
///
/// # Errors
/// A file that cannot be written.
pub fn write_drawing(drawing: &Drawing, title: &str, svg: &str, text: &str) -> Result<(), Failure> {
    let figure = html::Figure {
        title: "",
        svg,
        text,
    };
    write_drawings(drawing, title, svg, &[figure])
}

/// The same for several pictures: `svg` has all, a page has them one by one.
///
/// # Errors
/// A file that cannot be written.
pub fn write_drawings(
    drawing: &Drawing,
    title: &str,
    svg: &str,
    figures: &[html::Figure<'_>],
) -> Result<(), Failure> {
    let files = drawing.files().map(|path| (path, false));
    output::expect_apart(None::<&Path>, files)?;
    if let Some(path) = &drawing.svg {
        output::write_file(path, svg.as_bytes())?;
    }
    if let Some(path) = &drawing.png {
        output::write_file(path, &png::from_svg(svg, &PngOptions::default())?)?;
    }
    if let Some(path) = &drawing.html {
        output::write_file(path, html::figures(title, figures).as_bytes())?;
    }
    Ok(())
}

/// Which heat maps are printed on standard output, and how.
pub struct Screen {
    options: TerminalOptions,
    subwords: bool,
    choice: Choice,
}

impl Screen {
    /// As wide as the terminal, or as `COLUMNS` says, or 80 columns, with the colours that the terminal has.
    pub fn detect(files: &PictureFiles) -> Self {
        Self {
            subwords: files.subwords,
            choice: files.choice(),
            ..Self::plain()
        }
    }

    /// The same, for a single map that is drawn unchanged.
    pub fn plain() -> Self {
        let is_terminal = io::stdout().is_terminal();
        let variable = |name: &str| env::var(name).ok();
        let measured = terminal_size::terminal_size_of(io::stdout());
        let width = measured
            .map(|(width, _)| usize::from(width.0))
            .or_else(|| variable("COLUMNS")?.parse().ok())
            .filter(|&width| width > 0);
        let defaults = TerminalOptions::default();
        Self {
            options: TerminalOptions {
                width: width.unwrap_or(defaults.width),
                colour: Colour::detect(variable, is_terminal),
                direction: Direction::detect(variable, is_terminal),
                ..defaults
            },
            subwords: true,
            choice: Choice::default(),
        }
    }

    /// The chosen heat maps of a trace; an empty text if it has no maps. If the options choose none, a last line says how many
    /// more maps there are.
    ///
    /// # Errors
    /// A map that the trace does not have.
    pub fn draw(&self, trace: &Trace) -> Result<String, Failure> {
        let shown = shown(trace, self.subwords);
        let heatmaps = match Figure::of(&shown, self.choice)? {
            Figure::Image(picture) => return Ok(picture.text(&self.options)),
            Figure::Gates(gates) => {
                let gates = gates.iter().map(|gates| gates.text(&self.options));
                return Ok(gates.collect::<Vec<_>>().join("\n"));
            }
            Figure::Maps(heatmaps) => heatmaps,
        };
        let options = TerminalOptions {
            title: heatmaps.len() > 1 || self.choice.is_made(),
            ..self.options.clone()
        };
        let pictures: Vec<String> = heatmaps
            .iter()
            .map(|heatmap| terminal::heatmap(heatmap, &options))
            .collect();
        let mut text = pictures.join("\n");
        if let ([single], false, 2..) = (heatmaps.as_slice(), options.title, trace.maps.len()) {
            text.push_str(&format!(
                "{}; {} more maps: see --map, --layer and --head, or all of them with --html look.html\n",
                single.title(),
                trace.maps.len() - 1
            ));
        }
        Ok(text)
    }
}

/// Writes the pictures that `files` asks for.
///
/// # Errors
/// Nothing to draw, options `over_image` for other maps, a page of too many weights, or a file that cannot be written.
pub fn write(
    files: &PictureFiles,
    over_image: OverImage,
    entries: &[Entry],
) -> Result<(), Failure> {
    // What is wrong with a page keeps no picture back.
    let page = files.html.as_ref().map(|path| page::write(path, entries));
    draw(files, over_image, entries)?;
    page.unwrap_or(Ok(()))
}

/// Writes the figures of the chosen maps.
fn draw(files: &PictureFiles, over_image: OverImage, entries: &[Entry]) -> Result<(), Failure> {
    if files.draws_chosen()
        && let Some(figure) = gates_by_class(entries, files.choice())?
    {
        figure.expect_image(over_image)?;
        let drawing = Drawing {
            svg: files.svg.clone(),
            png: files.png.clone(),
            html: None,
        };
        return write_drawing(&drawing, "", &figure.svg(over_image), "");
    }
    write_figures(files, entries, &why_nothing(entries), |entry| {
        let trace = shown(&entry.trace, files.subwords);
        svg_of(&trace, files.choice(), over_image)
    })
}

/// Writes pictures of a long trace: a part of one head's map, if one head is there or chosen, else all heads, small.
///
/// # Errors
/// A layer, a head or a part that the trace does not have; a file that cannot be read or written.
pub fn write_long(
    trace: &LongTrace,
    files: &PictureFiles,
    queries: Option<Range<usize>>,
    keys: Option<Range<usize>>,
    quiet: bool,
) -> Result<(), Failure> {
    let choice = files.choice();
    let chosen = |pick: Pick<usize>, number: usize| match pick {
        Pick::One(wanted) => wanted == number,
        _ => true,
    };
    let maps = trace.maps().iter().enumerate();
    let of_kind = |map: &LongMap| match choice.kind {
        Pick::One(kind) => map.kind() == kind,
        _ => true,
    };
    let maps = maps.filter(|(_, map)| of_kind(map) && chosen(choice.layer, map.layer()));
    let found: Vec<(usize, usize)> = maps
        .flat_map(|(index, map)| {
            let heads = map.heads().iter().enumerate();
            let heads = heads.filter(|(_, number)| chosen(choice.head, **number));
            heads.map(move |(head, _)| (index, head))
        })
        .collect();
    let status = Status::new("maps", !quiet);
    let svg = match found[..] {
        [] => {
            let layers = trace.maps().iter();
            let layers = layers.map(|map| {
                let heads = map.heads().iter().map(|head| (head + 1).to_string());
                let heads = heads.collect::<Vec<_>>().join(", ");
                let kind = map.kind().name();
                format!("{kind}, layer {}: heads {heads}", map.layer() + 1)
            });
            let kept = layers.collect::<Vec<_>>().join("; ");
            return Err(Failure::Usage(format!(
                "no such map, layer or head; the trace has {kept}"
            )));
        }
        [(map, head)] => {
            let part = |name, part: Option<Range<usize>>, tokens: &Tokens| match part {
                Some(part) if part.end > tokens.len() => Err(Failure::Usage(format!(
                    "--{name}: the text has {} tokens",
                    tokens.len()
                ))),
                part => Ok(part.unwrap_or(0..tokens.len())),
            };
            let queries = part("queries", queries, trace.queries(map))?;
            let keys = part("keys", keys, trace.keys(map))?;
            let heatmap = long::head(trace, map, head, queries, keys, long::SIDE)?;
            svg::heatmap(&heatmap, &SvgOptions::default())
        }
        _ if queries.is_some() || keys.is_some() => {
            let message = "--queries and --keys are for the map of one head: choose --layer and --head, and --map if there are several";
            return Err(Failure::Usage(message.to_owned()));
        }
        ref several => {
            let groups = long::overview(trace, several, |done| {
                status.set(&format!("{done} of {} heads", several.len()));
            })?;
            svg::mosaic(&groups, &SvgOptions::default())
        }
    };
    drop(status);
    let drawing = Drawing {
        svg: files.svg.clone(),
        html: files.html.clone(),
        png: None,
    };
    let title = format!("{} · {}", trace.model(), trace.source());
    write_drawing(&drawing, &title, &svg, "")?;
    match &files.png {
        // A cell has two pixels of the SVG already.
        Some(path) => {
            let options = PngOptions {
                scale: 1.0,
                ..PngOptions::default()
            };
            Ok(output::write_file(path, &png::from_svg(&svg, &options)?)?)
        }
        None => Ok(()),
    }
}

/// The chosen maps of a trace as one figure, an SVG.
///
/// # Errors
/// A map that the trace does not have, options `over_image` for maps that are not.
pub fn svg_of(trace: &Trace, choice: Choice, over_image: OverImage) -> Result<String, Failure> {
    let figure = Figure::of(trace, choice)?;
    figure.expect_image(over_image)?;
    Ok(figure.svg(over_image))
}

/// The gates of several images by class, if that is all that there is to draw: a class is what the model took an image for.
fn gates_by_class(entries: &[Entry], choice: Choice) -> Result<Option<Figure>, Failure> {
    let mut images = vec![];
    for Entry { trace, .. } in entries {
        if trace.maps.is_empty() {
            continue;
        }
        if trace.image.is_none() {
            return Ok(None);
        }
        match Figure::of(trace, choice)? {
            Figure::Gates(gates) => images.push((trace.target.as_str(), gates)),
            _ => return Ok(None),
        }
    }
    if images.len() < 2 {
        return Ok(None);
    }
    Ok(Gates::by_class(&images)?.map(Figure::Gates))
}

/// What is drawn of a trace.
enum Figure {
    /// Maps over an image.
    Image(Box<ImagePicture>),
    /// Factors of channels, as bars.
    Gates(Vec<Gates>),
    /// Maps between words.
    Maps(Vec<Heatmap>),
}

impl Figure {
    /// The chosen maps: over the image, if the trace has one and they are over its cells.
    ///
    /// # Errors
    /// A map that the trace does not have.
    fn of(trace: &Trace, maps: Choice) -> Result<Self, Failure> {
        if trace.image.is_some() {
            let choice = ImageChoice {
                maps,
                ..ImageChoice::default()
            };
            match ImagePicture::of(trace, &choice) {
                Ok(picture) => return Ok(Self::Image(Box::new(picture))),
                Err(ImageError::NoMap { .. }) => {}
                Err(ImageError::Choice(error)) => return Err(error.into()),
                Err(error) => return Err(error.into()),
            }
            let gates = match Gates::chosen(trace, &maps) {
                Err(GatesError::Choice(error)) => return Err(error.into()),
                gates => gates?,
            };
            if !gates.is_empty() {
                return Ok(Self::Gates(gates));
            }
        }
        Ok(Self::Maps(maps.heatmaps(trace)?))
    }

    /// Refuses options of maps over an image where no map is.
    fn expect_image(&self, over_image: OverImage) -> Result<(), Failure> {
        let has_others = match self {
            Self::Image(_) => false,
            Self::Gates(gates) => !gates.is_empty(),
            Self::Maps(heatmaps) => !heatmaps.is_empty(),
        };
        match over_image.given() {
            Some(option) if has_others => Err(Failure::Usage(format!(
                "{option} is for maps over an image, and these are others; leave it out"
            ))),
            _ => Ok(()),
        }
    }

    fn svg(&self, over_image: OverImage) -> String {
        match self {
            Self::Image(picture) => picture.svg(&over_image.options()),
            Self::Gates(all) => gates::stacked(all),
            Self::Maps(heatmaps) => svg::grid(heatmaps, &SvgOptions::default()),
        }
    }
}

/// Writes the figure of each entry that has maps, an SVG, as it is and as PNG where `files` asks for them.
///
/// # Errors
/// Nothing to draw, `why` says why; or a file that cannot be written.
pub fn write_figures(
    files: &PictureFiles,
    entries: &[Entry],
    why: &str,
    figure: impl Fn(&Entry) -> Result<String, Failure>,
) -> Result<(), Failure> {
    for (path, as_png) in [(&files.svg, false), (&files.png, true)] {
        let Some(path) = path else { continue };
        let mut drawable = entries
            .iter()
            .filter(|entry| !entry.trace.maps.is_empty())
            .peekable();
        if drawable.peek().is_none() {
            return Err(CommandError::NothingToDraw {
                path: path.clone(),
                reason: why.to_owned(),
            }
            .into());
        }
        for entry in drawable {
            let (path, figure) = (numbered(path, entry, entries), figure(entry)?);
            match as_png {
                true => {
                    output::write_file(&path, &png::from_svg(&figure, &PngOptions::default())?)?
                }
                false => output::write_file(&path, figure.as_bytes())?,
            }
        }
    }
    Ok(())
}

/// The trace between words or subwords.
pub fn shown(trace: &Trace, subwords: bool) -> Trace {
    match subwords {
        true => trace.clone(),
        false => trace.merge_words(),
    }
}

fn why_nothing(entries: &[Entry]) -> String {
    match entries.iter().find(|entry| !is_blank(&entry.trace)) {
        None => "there was no text".to_owned(),
        Some(entry) => format!("{} is a model without attention", entry.trace.model),
    }
}

/// Whether a trace is of nothing that any model could look at.
fn is_blank(trace: &Trace) -> bool {
    trace.source.trim().is_empty() && trace.image.is_none()
}

/// Says that the `model` has no attention to show.
pub fn warn_of_nothing(model: &str) {
    output::warn(&format!(
        "{model} is a model without attention: there is nothing to show"
    ));
}

/// `look.svg` for one translation; `look-LINE.svg`, `look-RANK.svg` or `look-LINE-RANK.svg` where
/// there are several lines, several translations of a line, or both.
fn numbered(path: &Path, entry: &Entry, entries: &[Entry]) -> PathBuf {
    let mut name = path.file_stem().unwrap_or_default().to_owned();
    if entries.iter().any(|other| other.line != entry.line) {
        name.push(format!("-{}", entry.line));
    }
    if entries.iter().any(|other| other.rank > 1) {
        name.push(format!("-{}", entry.rank));
    }
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(line: usize, rank: usize) -> Entry {
        Entry::new(line, rank, Trace::default())
    }

    fn names(path: &str, entries: &[Entry]) -> Vec<String> {
        entries
            .iter()
            .map(|entry| {
                numbered(Path::new(path), entry, entries)
                    .display()
                    .to_string()
            })
            .collect()
    }

    #[test]
    fn pictures_are_numbered_where_there_are_several() {
        assert_eq!(names("a/b.svg", &[entry(1, 1)]), ["a/b.svg"]);
        assert_eq!(
            names("b.svg", &[entry(1, 1), entry(2, 1)]),
            ["b-1.svg", "b-2.svg"]
        );
        assert_eq!(names("b", &[entry(7, 1), entry(7, 2)]), ["b-1", "b-2"]);
        assert_eq!(
            names("b.x.png", &[entry(1, 1), entry(1, 2), entry(3, 1)]),
            ["b.x-1-1.png", "b.x-1-2.png", "b.x-3-1.png"]
        );
    }
}
