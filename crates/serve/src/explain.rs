//! What the server needs of worked examples: their names, and one of them computed with some of its inputs changed.

use serde::Serialize;

/// Worked examples of mechanisms. The server asks it from several threads.
///
/// ```
/// use regard_serve::{Control, ControlKind, Explainable, Explainer, Explained, ExplainedGroup};
///
/// /// Doubles a number.
/// struct Double;
///
/// impl Explainer for Double {
///     fn list(&self) -> Vec<ExplainedGroup> {
///         let entries = vec![Explainable { name: "double".into(), aliases: vec![], about: "twice a number".into() }];
///         vec![ExplainedGroup { name: "Mechanisms".into(), entries }]
///     }
///     fn explain(&self, name: &str, options: &[(String, String)]) -> Result<Explained, String> {
///         let mut x = 1.0;
///         for (option, value) in options {
///             match option.as_str() {
///                 "x" => x = value.parse().map_err(|_| format!("x is {value}: expected a number"))?,
///                 _ => return Err(format!("there is no {option:?}; expected x")),
///             }
///         }
///         let kind = ControlKind::Slider { least: 0.0, most: 10.0, step: 0.5 };
///         Ok(Explained {
///             name: name.to_owned(),
///             formula: "y = 2 x".into(),
///             remarks: vec![format!("y = {}", 2.0 * x)],
///             controls: vec![Control::new("x", "the number", kind, x.to_string())],
///             ..Explained::default()
///         })
///     }
/// }
/// # let shown = Double.explain("double", &[("x".into(), "4".into())]).unwrap();
/// # assert_eq!(shown.remarks, ["y = 8"]);
/// ```
pub trait Explainer: Send + Sync {
    /// Everything that it can explain, in groups.
    fn list(&self) -> Vec<ExplainedGroup>;

    /// The worked example of this name or synonym, with the inputs in `options` changed. Both are from the page: not checked.
    ///
    /// # Errors
    /// A sentence for the person at the page: what is wrong, and what to do. For a name that is not known it names the nearest.
    fn explain(&self, name: &str, options: &[(String, String)]) -> Result<Explained, String>;
}

/// Worked examples that belong together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ExplainedGroup {
    /// What they have in common.
    pub name: String,
    /// The examples.
    pub entries: Vec<Explainable>,
}

/// Something that can be explained.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Explainable {
    /// Its usual name.
    pub name: String,
    /// Other names.
    pub aliases: Vec<String>,
    /// What it does, in a line.
    pub about: String,
}

/// A worked example.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Explained {
    /// Its usual name.
    pub name: String,
    /// What it does, in a line.
    pub summary: String,
    /// What it computes, in a line.
    pub formula: String,
    /// Where it is from.
    pub source: String,
    /// The command that prints the same; empty if there is none.
    pub command: String,
    /// The steps in order.
    pub steps: Vec<ExplainedStep>,
    /// What to notice, in sentences.
    pub remarks: Vec<String>,
    /// Its picture, a document of SVG.
    pub svg: String,
    /// All of it as text, for a page of its own.
    pub text: String,
    /// What can be changed.
    pub controls: Vec<Control>,
}

/// One step: numbers with names on both sides.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExplainedStep {
    /// What it is called.
    pub name: String,
    /// How it is computed.
    pub formula: String,
    /// What the columns are called.
    pub columns: Vec<String>,
    /// What the rows are called, and one cell a column; a hidden cell has no number.
    pub rows: Vec<(String, Vec<Option<f64>>)>,
}

/// An input that can be changed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Control {
    /// The name of the option.
    pub option: String,
    /// What it is, in a line.
    pub about: String,
    /// How it is changed.
    pub kind: ControlKind,
    /// Its value as the option takes it; empty if it has none.
    pub value: String,
    /// Options that no longer fit once this one is changed.
    pub replaces: Vec<String>,
}

impl Control {
    /// A control that replaces no other.
    pub fn new(
        option: impl Into<String>,
        about: impl Into<String>,
        kind: ControlKind,
        value: impl Into<String>,
    ) -> Self {
        Self {
            option: option.into(),
            about: about.into(),
            kind,
            value: value.into(),
            replaces: vec![],
        }
    }
}

/// How an input is changed.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ControlKind {
    /// A number.
    Slider {
        /// The least that the slider gives.
        least: f64,
        /// The most.
        most: f64,
        /// Between two places of the slider.
        step: f64,
    },
    /// One of these values, in order.
    Values(Vec<String>),
    /// One of these names.
    Choice(Vec<String>),
    /// Vectors as `1,2;3,4`, with a slider for each number.
    Matrix {
        /// What the vectors are called.
        rows: Vec<String>,
        /// The least that a slider gives.
        least: f64,
        /// The most.
        most: f64,
        /// Between two places of a slider.
        step: f64,
    },
    /// A text, with a slider for each number in it.
    Text {
        /// What can be written, such as `window:WIDTH`.
        usages: Vec<String>,
    },
}
