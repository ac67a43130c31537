//! Pictures of texts that are too long for their weights: each cell stands for a block of them.
//!
//! ```text
//! cell (r, c) = the largest w_ij of the queries of row r and the keys of column c
//! ```
//! The largest, not the mean, so that one weight among ten thousand is still seen. Colours are logarithmic and begin at `1 / L`, what
//! each of `L` tokens would get from a query that does not choose. Cells are computed from queries and keys, see
//! [`regard_trace::long`].
//!
//! ```
//! # use regard_kernels::Attention;
//! # use regard_trace::{LongMap, LongWriter, Opened, Tokens, long::Piece, open};
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("long.safetensors");
//! # let tokens = Tokens::from_words("to be or not to be");
//! # let mut writer = LongWriter::create(&path, "toy", "a text", tokens, vec![LongMap::new(0, vec![4], vec![0], 2)])?;
//! # let piece = Piece { first: 0, query: &[0.5; 12], keys_from: 0, key: &[0.5; 12] };
//! # writer.piece(0, 0, &Attention::default(), piece)?;
//! # writer.finish()?;
//! let Opened::Long(trace) = open(&path)? else { panic!("not long") };
//! let picture = regard_view::long::head(&trace, 0, 0, 0..6, 0..6, 3)?;
//! assert_eq!(picture.title(), "toy · a text · layer 1 head 5");
//! assert_eq!(picture.rows(), ["1 to", "3 or", "5 to"]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::ops::Range;

use regard_kernels::pool;
use regard_trace::{Kind, LongTrace, Tokens, TraceError};

use crate::Heatmap;
use crate::svg::Group;

/// Rows and columns of a picture of one head.
pub const SIDE: usize = 1024;

/// Rows and columns of a small picture among others.
pub const SMALL: usize = 72;

/// A part of the map of one head in at most `side` rows and columns, each named by the position, counted from 1, and the text of
/// its first token.
///
/// # Errors
/// Those of [`LongTrace::head`], and a part that is not there.
pub fn head(
    trace: &LongTrace,
    map: usize,
    index: usize,
    queries: Range<usize>,
    keys: Range<usize>,
    side: usize,
) -> Result<Heatmap, TraceError> {
    let (layer, number) = (trace.maps()[map].layer(), trace.maps()[map].heads()[index]);
    let (rows, columns) = (queries.len().min(side), keys.len().min(side));
    let cells = trace
        .head(map, index)?
        .pooled(
            queries.clone(),
            keys.clone(),
            rows,
            columns,
            pool::Kind::Max,
        )
        .map_err(|error| TraceError::LongHead {
            layer,
            head: number,
            reason: error.to_string(),
        })?;
    let names = |tokens: &Tokens, range: &Range<usize>, count: usize| -> Vec<String> {
        let name = |cell: usize| {
            let at = range.start + cell * range.len() / count;
            let text = tokens.get(at).map_or("", |token| token.text.trim());
            format!("{} {text}", at + 1)
        };
        (0..count).map(name).collect()
    };
    let (of_queries, of_keys) = (trace.queries(map), trace.keys(map));
    let kind = trace.maps()[map].kind();
    let title = [
        trace.model(),
        trace.source(),
        &format!("{}layer {} head {}", prefix(kind), layer + 1, number + 1),
    ]
    .join(" · ");
    let (query, key) = kind.axis_names();
    let (rows, columns) = (
        names(of_queries, &queries, rows),
        names(of_keys, &keys, columns),
    );
    Ok(Heatmap::table(rows, columns, cells)
        .titled(title)
        .with_axes(query, key)
        .logarithmic(1.0 / of_keys.len() as f32))
}

/// What stands before the layer of a map, if a model has several kinds of them.
fn prefix(kind: Kind) -> String {
    match kind {
        Kind::SelfAttention => String::new(),
        kind => format!("{} ", kind.name()),
    }
}

/// Some heads, each the index of its map and its own in it, small: a group for each map. `told` is called before each head with the
/// number of those that are done.
///
/// # Errors
/// Those of [`LongTrace::head`].
pub fn overview(
    trace: &LongTrace,
    heads: &[(usize, usize)],
    mut told: impl FnMut(usize),
) -> Result<Vec<Group>, TraceError> {
    let mut groups: Vec<Group> = vec![];
    for (done, &(map, index)) in heads.iter().enumerate() {
        told(done);
        let of = &trace.maps()[map];
        let [queries, keys] = [trace.queries(map), trace.keys(map)].map(|axis| 0..axis.len());
        let small = head(trace, map, index, queries, keys, SMALL)?;
        let small = small.titled(format!("head {}", of.heads()[index] + 1));
        if done == 0 || heads[done - 1].0 != map {
            groups.push(Group {
                title: format!("{}layer {}", prefix(of.kind()), of.layer() + 1),
                heatmaps: vec![],
            });
        }
        if let Some(group) = groups.last_mut() {
            group.heatmaps.push(small);
        }
    }
    Ok(groups)
}
