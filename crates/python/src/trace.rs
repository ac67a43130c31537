//! Traces, and pictures of them.

use std::{path::PathBuf, sync::mpsc, thread};

use numpy::{PyArrayDyn, PyReadonlyArrayDyn, PyUntypedArrayMethods};
use pyo3::{
    exceptions::{PyIndexError, PyTypeError},
    prelude::*,
    types::{PyBytes, PyDict},
};
use regard_kernels::{Attention, Window};
use regard_serve::{Config, Contents, Opened, Stop, serve};
use regard_trace::{
    self as traces, AttentionMap, Axis, Kind, LongMap, LongWriter, Token, Tokens, diagnose,
    file::MAX_LAYER, long::Piece,
};
use regard_view::{
    Heatmap,
    png::{self, PngOptions},
    svg::{self, SvgOptions},
};

use crate::{
    arrays::{argument, array, counted, refused, shaped, slice},
    threads::{detached, unstarted},
};

/// Tokens as `(text, number of its word or None, whether it is special)`, or a number of positions without texts.
#[derive(FromPyObject)]
pub enum Along {
    Tokens(Vec<(String, Option<usize>, bool)>),
    Positions(usize),
}

impl From<Along> for Axis {
    fn from(along: Along) -> Self {
        match along {
            Along::Positions(length) => Self::Positions { length },
            Along::Tokens(tokens) => {
                let token = |(text, word, special)| Token {
                    text,
                    word,
                    special,
                };
                let tokens: Tokens = tokens.into_iter().map(token).collect();
                Self::Tokens { tokens }
            }
        }
    }
}

/// The tokens or positions that the argument `name` gives.
///
/// # Errors
/// Anything else.
fn along(name: &str, given: &Bound<'_, PyAny>) -> PyResult<Axis> {
    let found = given.extract::<Along>();
    found.map(Axis::from).map_err(|_| {
        PyTypeError::new_err(format!(
            "`{name}` is neither a number of positions nor a list of tokens: (text, number of its word or None, whether it is special)"
        ))
    })
}

/// The argument `layer`.
///
/// # Errors
/// Anything but a whole number from 0 to [`MAX_LAYER`].
fn layer_of(given: &Bound<'_, PyAny>) -> PyResult<usize> {
    let layer = counted("layer", given)?.filter(|&layer| layer <= MAX_LAYER);
    layer.ok_or_else(|| refused(format!("`layer` is {given}, expected 0 to {MAX_LAYER}")))
}

/// What a model looked at on the way to one output.
#[pyclass(from_py_object, module = "regard")]
#[derive(Clone)]
pub struct Trace(traces::Trace);

#[pymethods]
impl Trace {
    #[new]
    #[pyo3(
        signature = (model=None, source=None, target=None),
        text_signature = "(model='', source='', target='')"
    )]
    fn new<'py>(
        model: Option<&Bound<'py, PyAny>>,
        source: Option<&Bound<'py, PyAny>>,
        target: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Self> {
        let given = [("model", model), ("source", source), ("target", target)];
        let [model, source, target] = given.map(|(name, text)| match text {
            Some(text) => argument::<String>(name, text, "text"),
            None => Ok(String::new()),
        });
        Ok(Self(traces::Trace::new(model?, source?, target?)))
    }

    /// Adds a map `[heads, queries, keys]`; `kind` is one of encoder.self, decoder.self, decoder.cross, self, attention, and gives the
    /// map its name if there is none.
    #[pyo3(
        signature = (kind, layer, queries, keys, weights, *, normalized=None, name=None),
        text_signature = "($self, kind, layer, queries, keys, weights, *, normalized=True, name=None)"
    )]
    #[allow(clippy::too_many_arguments, reason = "keywords of one call")]
    fn add(
        &mut self,
        kind: &Bound<'_, PyAny>,
        layer: &Bound<'_, PyAny>,
        queries: &Bound<'_, PyAny>,
        keys: &Bound<'_, PyAny>,
        weights: &Bound<'_, PyAny>,
        normalized: Option<&Bound<'_, PyAny>>,
        name: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let kind = argument::<String>("kind", kind, "text")?;
        let name = name.map(|name| argument::<String>("name", name, "text"));
        let name = name.transpose()?;
        let of_rows = "truth value: True or False";
        let normalized = normalized.map(|given| argument::<bool>("normalized", given, of_rows));
        let normalized = normalized.transpose()?.unwrap_or(true);
        let layer = layer_of(layer)?;
        let (queries, keys) = (along("queries", queries)?, along("keys", keys)?);
        let weights = (weights.extract::<PyReadonlyArrayDyn<'_, f32>>()).map_err(|_| {
            PyTypeError::new_err(
                "`weights` is no numpy array of float32: pass numpy.asarray(weights, numpy.float32), of a tensor weights.detach().float().numpy()",
            )
        })?;
        let kinds = [
            Kind::EncoderSelf,
            Kind::DecoderSelf,
            Kind::Cross,
            Kind::SelfAttention,
            Kind::Other,
        ];
        let found = kinds.into_iter().find(|known| known.name() == kind);
        let kind = found.ok_or_else(|| {
            let names = kinds.map(Kind::name).join(", ");
            refused(format!("`kind` is {kind:?}, expected one of {names}"))
        })?;
        let &[heads, _, _] = weights.shape() else {
            return Err(refused(format!(
                "`weights` has the shape {:?}, expected [heads, queries, keys]",
                weights.shape()
            )));
        };
        let shape = [heads, queries.len(), keys.len()];
        let numbers = shaped("weights", &weights, "[heads, queries, keys]", &shape)?.to_vec();
        let map = match normalized {
            true => AttentionMap::new(kind, queries, keys, heads, numbers),
            false => AttentionMap::unnormalized(kind, queries, keys, heads, numbers),
        };
        let map = map.map_err(refused)?.at_layer(layer);
        self.0.maps.push(match name {
            Some(name) => map.named(name),
            None => map,
        });
        Ok(())
    }

    /// The number of maps.
    fn __len__(&self) -> usize {
        self.0.maps.len()
    }

    /// The name, layer, heads and tokens of a map, and its weights `[heads, queries, keys]`.
    fn map<'py>(&self, py: Python<'py>, index: &Bound<'_, PyAny>) -> PyResult<Bound<'py, PyDict>> {
        let map = self.at(index)?;
        let found = PyDict::new(py);
        found.set_item("name", map.name())?;
        found.set_item("layer", map.layer())?;
        found.set_item("heads", map.heads())?;
        found.set_item("queries", map.queries().labels())?;
        found.set_item("keys", map.keys().labels())?;
        let weights: Bound<'_, PyArrayDyn<f32>> = array(py, map.weights().to_vec(), &map.shape())?;
        found.set_item("weights", weights)?;
        Ok(found)
    }

    #[getter]
    fn model(&self) -> &str {
        &self.0.model
    }

    #[getter]
    fn source(&self) -> &str {
        &self.0.source
    }

    #[getter]
    fn target(&self) -> &str {
        &self.0.target
    }

    /// What stands out, in words, a line each.
    fn report(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        detached(py, || diagnose::report::summary(&self.0))
    }

    /// One head of a map as SVG, or the mean of all.
    #[pyo3(signature = (index, head=None))]
    fn svg(&self, index: &Bound<'_, PyAny>, head: Option<&Bound<'_, PyAny>>) -> PyResult<String> {
        let map = self.at(index)?;
        let of_head = match head {
            None => map.mean_heads(),
            Some(head) => {
                let found = counted("head", head)?.and_then(|head| map.head(head).ok());
                found.ok_or_else(|| {
                    PyIndexError::new_err(format!(
                        "there is no head {head}: the map has {}",
                        map.heads()
                    ))
                })?
            }
        };
        let heatmap = Heatmap::from_map(&of_head);
        Ok(svg::heatmap(&heatmap, &SvgOptions::default()))
    }

    /// As [`svg`](Self::svg), as the bytes of a PNG file.
    #[pyo3(signature = (index, head=None))]
    fn png(&self, index: &Bound<'_, PyAny>, head: Option<&Bound<'_, PyAny>>) -> PyResult<Vec<u8>> {
        png::from_svg(&self.svg(index, head)?, &PngOptions::default()).map_err(refused)
    }

    /// The bytes of a trace file, for `pickle` and `copy`, which begin with an empty trace.
    fn __getstate__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = traces::to_bytes(std::slice::from_ref(&self.0)).map_err(refused)?;
        Ok(PyBytes::new(py, &bytes))
    }

    fn __setstate__(&mut self, state: &Bound<'_, PyBytes>) -> PyResult<()> {
        let found = traces::from_bytes(state.as_bytes()).map_err(refused)?;
        self.0 = (found.into_iter().next()).ok_or_else(|| refused("there is no trace in this"))?;
        Ok(())
    }

    fn __repr__(&self) -> String {
        format!(
            "<regard.Trace of {:?}, {} maps>",
            self.0.model,
            self.0.maps.len()
        )
    }
}

impl Trace {
    /// A trace that a model of ours made.
    pub fn of(trace: traces::Trace) -> Self {
        Self(trace)
    }

    /// A trace of nothing.
    pub fn empty() -> Self {
        Self(traces::Trace::new("", "", ""))
    }

    fn at(&self, index: &Bound<'_, PyAny>) -> PyResult<&AttentionMap> {
        let map = counted("index", index)?.and_then(|index| self.0.maps.get(index));
        map.ok_or_else(|| {
            PyIndexError::new_err(format!(
                "there is no map {index}: the trace has {}",
                self.0.maps.len()
            ))
        })
    }
}

fn inner(all: Vec<Trace>) -> Vec<traces::Trace> {
    all.into_iter().map(|trace| trace.0).collect()
}

/// The traces of a file.
#[pyfunction]
pub fn read_traces(py: Python<'_>, path: PathBuf) -> PyResult<Vec<Trace>> {
    let read = detached(py, || traces::read(path))?.map_err(refused)?;
    Ok(read.into_iter().map(Trace).collect())
}

/// Writes traces to a file, which appears whole or not at all.
#[pyfunction]
pub fn write_traces(py: Python<'_>, path: PathBuf, all: Vec<Trace>) -> PyResult<()> {
    detached(py, || traces::write(path, &inner(all)))?.map_err(refused)
}

/// What the scores of one layer follow from.
#[derive(FromPyObject)]
pub struct LongLayer {
    layer: usize,
    heads: Vec<usize>,
    keys_of: Vec<usize>,
    dim: usize,
}

/// A file that keeps queries and keys of a long text in place of weights: for each layer its heads, one after the other. It appears when it
/// is finished.
#[pyclass]
pub struct LongFile(Option<LongWriter>);

#[pymethods]
impl LongFile {
    #[new]
    fn new(
        path: PathBuf,
        model: String,
        source: String,
        tokens: Along,
        layers: Vec<LongLayer>,
    ) -> PyResult<Self> {
        let tokens = match tokens {
            Along::Positions(length) => (1..=length).map(|at| Token::new(at.to_string())).collect(),
            tokens => match Axis::from(tokens) {
                Axis::Tokens { tokens } => tokens,
                _ => unreachable!("tokens are tokens"),
            },
        };
        let layers = layers
            .into_iter()
            .map(|of| LongMap::new(of.layer, of.heads, of.keys_of, of.dim));
        let writer = LongWriter::create(path, model, source, tokens, layers.collect());
        Ok(Self(Some(writer.map_err(refused)?)))
    }

    /// All queries and keys `[tokens, dim]` of a head; `left`: how far a query sees.
    #[pyo3(signature = (layer, head, query, key, *, scale, softcap, causal, left))]
    #[allow(clippy::too_many_arguments, reason = "keywords of one call")]
    fn head(
        &mut self,
        py: Python<'_>,
        layer: usize,
        head: usize,
        query: PyReadonlyArrayDyn<'_, f32>,
        key: PyReadonlyArrayDyn<'_, f32>,
        scale: Option<f32>,
        softcap: Option<f32>,
        causal: bool,
        left: Option<usize>,
    ) -> PyResult<()> {
        let (query, key) = (slice("query", &query)?, slice("key", &key)?);
        let attention = Attention {
            scale,
            softcap,
            causal,
            window: left.map(|left| Window {
                left: Some(left),
                right: None,
            }),
            ..Attention::default()
        };
        let piece = Piece {
            first: 0,
            query,
            keys_from: 0,
            key,
        };
        let writer = self.0.as_mut().ok_or_else(finished)?;
        detached(py, || writer.piece(layer, head, &attention, piece))?.map_err(refused)
    }

    /// Gives the file its name.
    fn finish(&mut self, py: Python<'_>) -> PyResult<()> {
        let writer = self.0.take().ok_or_else(finished)?;
        detached(py, || writer.finish())?.map_err(refused)
    }
}

fn finished() -> PyErr {
    refused("this file is finished")
}

/// One page with these traces, which needs nothing else.
#[pyfunction]
pub fn traces_page(py: Python<'_>, all: Vec<Trace>, title: String) -> PyResult<String> {
    let named = |trace: regard_trace::Trace| (trace.source.trim().to_owned(), trace);
    detached(py, || {
        regard_serve::page(&title, inner(all).into_iter().map(named).collect())
    })
}

/// A viewer that runs.
#[pyclass]
pub struct Served {
    /// The address of the page.
    #[pyo3(get)]
    url: String,
    stop: Stop,
}

#[pymethods]
impl Served {
    /// Ends it.
    fn stop(&self) {
        self.stop.now();
    }
}

/// Opens the viewer on another thread, at an address that only this machine reaches.
#[pyfunction]
pub fn serve_traces(py: Python<'_>, all: Vec<Trace>, port: u16) -> PyResult<Served> {
    let opened = inner(all).into_iter().map(|trace| Opened {
        name: trace.model.clone(),
        trace,
        long: None,
        training: None,
    });
    let contents = Contents {
        traces: opened.collect(),
        ..Contents::default()
    };
    let mut config = Config::default();
    config.listen.set_port(port);
    let (ready, started) = mpsc::channel();
    let failed = ready.clone();
    let work = move || {
        let served = serve(config, contents, move |running| {
            let _ = ready.send(Ok(running));
        });
        if let Err(error) = served {
            let _ = failed.send(Err(error.to_string()));
        }
    };
    thread::Builder::new().spawn(work).map_err(unstarted)?;
    let running = py.detach(move || started.recv()).map_err(refused)?;
    let running = running.map_err(refused)?;
    Ok(Served {
        url: running.url,
        stop: running.stop,
    })
}
