//! Keys and values of the past, kept so that a decoder computes each of them once.
//!
//! Without a cache, step `t` of a decoder projects all `t` tokens again; with one it projects the new
//! token alone and reads the others' keys and values from here: `O(t)` instead of `O(t²)` a step. The
//! numbers are the same either way.
//!
//! - [`KeyValueCache::growing`] keeps everything.
//! - [`KeyValueCache::rolling`] keeps what a sliding window can still see (Mistral 7B, Jiang et al.
//!   2023, section 2): memory stays the same however long the text grows. In the paper, slot `t mod W` holds token `t`. Here
//!   tokens stay in order, in a buffer a quarter larger than the window; when the buffer is full, the tokens that are kept move
//!   to its front. So masks and positions need to know only the position of the first key ([`Cached::first`]), and a token is
//!   moved at most four times on average.
//!
//! Both store keys and values in the type they come in, or ([`KeyValueCache::stored`]) as bfloat16 or f16: half the memory, and
//! a step reads half as much. A single new token on the CPU reads the cache in place, in the type it is stored in, and computes
//! in `f32`.
//!
//! **Shapes**: keys `[batch, heads, length, d]`, values `[batch, heads, length, d_v]`; `heads` are
//! key/value heads, so that grouped queries make the cache smaller by the size of a group.
//!
//! **When not**: in training, where all steps of a sequence run at once.
//!
//! **Cost**: `batch · heads · length · (d + d_v)` numbers, up to twice that while growing; a rolling cache grows too,
//! until it has room for its window. An append writes in place unless the tensors that the previous append returned are still
//! held.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use regard_nn::cache::KeyValueCache;
//!
//! let device = Device::flex();
//! let token = |x: f32| Tensor::<4>::full([1, 1, 1, 2], x, &device);
//! let mut cache = KeyValueCache::rolling(3)?;
//! for t in 0..4 {
//!     cache.append(token(t as f32), token(t as f32))?;
//! }
//! // Token 4 sees itself and the two before it.
//! let seen = cache.append(token(4.0), token(4.0))?;
//! assert_eq!((seen.first, seen.keys.dims()), (2, [1, 1, 3, 2]));
//! assert_eq!(seen.keys.into_data().into_vec::<f32>().unwrap(), [2.0, 2.0, 3.0, 3.0, 4.0, 4.0]);
//! # Ok::<(), regard_nn::AttentionError>(())
//! ```

use burn::tensor::{DType, Tensor};

use crate::{attention::AttentionError, heads::row_index, precision::check_precision};

/// The least number of tokens for which a cache makes room.
const MINIMUM: usize = 16;

/// Keys and values of the past of one attention layer.
#[derive(Debug, Clone)]
pub struct KeyValueCache {
    window: Option<usize>,
    /// The type that keys and values are stored in, if not the one they come in.
    stored: Option<DType>,
    buffers: Option<Buffers>,
    seen: usize,
}

/// Tokens `seen - length .. seen` are at `start .. start + length` of both buffers.
#[derive(Debug, Clone)]
struct Buffers {
    keys: Tensor<4>,   // [batch, heads, capacity, d]
    values: Tensor<4>, // [batch, heads, capacity, d_v]
    start: usize,
    length: usize,
}

/// What the newest queries may see, oldest first, in the type it is stored in.
#[derive(Debug, Clone)]
pub struct Cached {
    /// `[batch, heads, length, d]`
    pub keys: Tensor<4>,
    /// `[batch, heads, length, d_v]`
    pub values: Tensor<4>,
    /// The position of the first key in its sequence; the others follow one by one.
    pub first: usize,
}

impl KeyValueCache {
    /// A cache that keeps everything.
    pub fn growing() -> Self {
        Self {
            window: None,
            stored: None,
            buffers: None,
            seen: 0,
        }
    }

    /// A cache for attention in which a token sees `window` tokens, including itself.
    ///
    /// # Errors
    /// If `window` is 0.
    pub fn rolling(window: usize) -> Result<Self, AttentionError> {
        if window == 0 {
            return Err(AttentionError::value(
                "window",
                0,
                "at least 1",
                "a token sees itself; keep everything with `KeyValueCache::growing`",
            ));
        }
        Ok(Self {
            window: Some(window),
            ..Self::growing()
        })
    }

    /// Stores keys and values as `dtype`: bfloat16, or f16, which is finer and reaches to 65,504. With `f32` queries, attention
    /// is computed in `f32` from keys and values that were rounded once.
    ///
    /// # Errors
    /// If `dtype` is another one, or if tokens have been appended.
    ///
    /// ```
    /// use burn::tensor::{DType, Device, Tensor};
    /// use regard_nn::cache::KeyValueCache;
    ///
    /// let mut cache = KeyValueCache::growing().stored(DType::BF16)?;
    /// let third = Tensor::<4>::full([1, 1, 1, 2], 1.0 / 3.0, &Device::flex());
    /// let seen = cache.append(third.clone(), third)?;
    /// assert_eq!(seen.keys.dtype(), DType::BF16);
    /// assert_eq!(seen.keys.cast(DType::F32).into_data().into_vec::<f32>().unwrap(), [0.333_984_38; 2]);
    /// # Ok::<(), regard_nn::AttentionError>(())
    /// ```
    pub fn stored(self, dtype: DType) -> Result<Self, AttentionError> {
        if !matches!(dtype, DType::BF16 | DType::F16) {
            return Err(AttentionError::value(
                "stored",
                dtype.name(),
                "bf16 or f16",
                "leave it out to keep keys and values as they come",
            ));
        }
        if self.seen > 0 {
            return Err(AttentionError::value(
                "cached tokens",
                self.seen,
                "0",
                "say how a cache is stored when it is made",
            ));
        }
        Ok(Self {
            stored: Some(dtype),
            ..self
        })
    }

    /// How many tokens a token can see, including itself; `None` for all.
    pub fn window(&self) -> Option<usize> {
        self.window
    }

    /// How many tokens have been appended: the position of the next one.
    pub fn next_position(&self) -> usize {
        self.seen
    }

    /// How many of the tokens so far the next one sees.
    pub fn visible(&self) -> usize {
        let most = self.window.map_or(usize::MAX, |window| window - 1);
        let kept = self.buffers.as_ref().map_or(0, |buffers| buffers.length);
        kept.min(most)
    }

    /// How many tokens there is room for; fewer are kept.
    pub fn capacity(&self) -> usize {
        self.buffers.as_ref().map_or(0, Buffers::capacity)
    }

    /// Appends the keys and values of any number of new tokens, and returns all that the new tokens' queries may see: the kept
    /// past, then the new tokens. Under a window, the oldest of several new tokens sees further back than the newest, so the
    /// mask must still be applied.
    ///
    /// # Errors
    /// If keys and values differ in anything but their last dimension, or if batch, heads or sizes
    /// differ from what the cache holds.
    pub fn append(&mut self, keys: Tensor<4>, values: Tensor<4>) -> Result<Cached, AttentionError> {
        let cached = self.extend(keys, values)?;
        self.settle();
        Ok(cached)
    }

    /// As [`append`](Self::append), but nothing is dropped yet: [`settle`](Self::settle) or [`take_back`](Self::take_back) follows.
    pub(crate) fn extend(
        &mut self,
        keys: Tensor<4>,
        values: Tensor<4>,
    ) -> Result<Cached, AttentionError> {
        self.check(&keys, &values)?;
        let (keys, values) = match self.stored {
            Some(dtype) => (keys.cast(dtype), values.cast(dtype)),
            None => (keys, values),
        };
        let new = keys.dims()[2];
        let past = self.visible();
        let total = past + new;
        self.seen += new;
        if total == 0 {
            return Ok(Cached {
                keys,
                values,
                first: self.seen,
            });
        }
        let buffers = match self.buffers.take() {
            Some(buffers) if buffers.end() + new <= buffers.capacity() => {
                buffers.write(keys, values, past)
            }
            buffers => self.make_room(buffers, keys, values, past),
        };
        let start = buffers.start;
        let cached = Cached {
            keys: buffers.keys.clone().narrow(2, start, total),
            values: buffers.values.clone().narrow(2, start, total),
            first: self.seen - total,
        };
        self.buffers = Some(buffers);
        Ok(cached)
    }

    /// Drops what no later token can see.
    pub(crate) fn settle(&mut self) {
        let buffers = self.buffers.take();
        self.buffers = buffers.and_then(|buffers| self.trim(buffers));
    }

    /// Takes back the last `new` tokens, by which the cache was [extended](Self::extend): it is as it was before.
    pub(crate) fn take_back(&mut self, new: usize) {
        self.seen -= new;
        let buffers = self.buffers.take();
        self.buffers = buffers.and_then(|mut buffers| {
            buffers.length -= new;
            (buffers.length > 0).then_some(buffers)
        });
        self.settle();
    }

    /// Keeps the batch rows at `rows`, in that order (rows may repeat): as beam search does after a step.
    ///
    /// # Errors
    /// If a row is not there.
    pub fn select(&mut self, rows: &[usize]) -> Result<(), AttentionError> {
        let Some(buffers) = &mut self.buffers else {
            return Ok(());
        };
        let batch = buffers.keys.dims()[0];
        let index = row_index(rows, batch, &buffers.keys.device())?;
        buffers.keys = buffers.keys.clone().select(0, index.clone());
        buffers.values = buffers.values.clone().select(0, index);
        Ok(())
    }

    /// Buffers with room to spare that hold the last `past` tokens and the new ones.
    fn make_room(
        &self,
        old: Option<Buffers>,
        keys: Tensor<4>,
        values: Tensor<4>,
        past: usize,
    ) -> Buffers {
        let length = past + keys.dims()[2];
        let doubled = old.as_ref().map_or(0, |buffers| 2 * buffers.capacity());
        let most = self.window.map_or(usize::MAX, rolling_capacity);
        let capacity = doubled.max(MINIMUM).min(most).max(length);
        let pack = |old: Option<Tensor<4>>, new: Tensor<4>| {
            let [batch, heads, _, size] = new.dims();
            let mut parts: Vec<Tensor<4>> = old.into_iter().collect();
            let spare = Tensor::zeros(
                [batch, heads, capacity - length, size],
                (&new.device(), new.dtype()),
            );
            parts.push(new);
            if capacity > length {
                parts.push(spare);
            }
            Tensor::cat(parts, 2)
        };
        let (old_keys, old_values) = old
            .filter(|_| past > 0)
            .map(|buffers| {
                let first = buffers.end() - past;
                (
                    buffers.keys.narrow(2, first, past),
                    buffers.values.narrow(2, first, past),
                )
            })
            .unzip();
        Buffers {
            keys: pack(old_keys, keys),
            values: pack(old_values, values),
            start: 0,
            length,
        }
    }

    /// `buffers` without what no later token can see.
    fn trim(&self, mut buffers: Buffers) -> Option<Buffers> {
        let Some(window) = self.window else {
            return Some(buffers);
        };
        let kept = buffers.length.min(window - 1);
        if kept == 0 {
            return None;
        }
        buffers.start += buffers.length - kept;
        buffers.length = kept;
        if buffers.capacity() > rolling_capacity(window) {
            // After a long text that came in at once, only the end of its buffer is kept.
            let start = buffers.start;
            let keep = |x: Tensor<4>| {
                let [batch, heads, _, size] = x.dims();
                let kept_part = x.narrow(2, start, kept);
                let spare = [batch, heads, rolling_capacity(window) - kept, size];
                let spare = Tensor::zeros(spare, (&kept_part.device(), kept_part.dtype()));
                Tensor::cat(vec![kept_part, spare], 2)
            };
            buffers = Buffers {
                keys: keep(buffers.keys),
                values: keep(buffers.values),
                start: 0,
                length: kept,
            };
        }
        Some(buffers)
    }

    fn check(&self, keys: &Tensor<4>, values: &Tensor<4>) -> Result<(), AttentionError> {
        let [batch, heads, length, size] = keys.dims();
        if values.dims()[..3] != [batch, heads, length] {
            return Err(AttentionError::shape(
                "values",
                &values.dims(),
                format!("[{batch}, {heads}, {length}, _]"),
                "there is one value for each key",
            ));
        }
        let Some(buffers) = &self.buffers else {
            return Ok(());
        };
        let expect = |field, found: [usize; 4], held: [usize; 4]| {
            let [batch, heads, _, size] = held;
            if [found[0], found[1], found[3]] == [batch, heads, size] {
                return Ok(());
            }
            Err(AttentionError::shape(
                field,
                &found,
                format!("[{batch}, {heads}, _, {size}]"),
                "that is what is cached; start a new cache for a new batch",
            ))
        };
        expect("keys", [batch, heads, length, size], buffers.keys.dims())?;
        expect("values", values.dims(), buffers.values.dims())?;
        if self.stored.is_some() {
            return Ok(());
        }
        let owner = "what is cached";
        check_precision("keys", keys.dtype(), buffers.keys.dtype(), owner)?;
        check_precision("values", values.dtype(), buffers.values.dtype(), owner)
    }
}

impl Buffers {
    fn capacity(&self) -> usize {
        self.keys.dims()[2]
    }

    fn end(&self) -> usize {
        self.start + self.length
    }

    /// Writes new tokens after the `past` tokens that are kept.
    fn write(self, keys: Tensor<4>, values: Tensor<4>, past: usize) -> Self {
        let end = self.end();
        let new = keys.dims()[2];
        let write = |buffer: Tensor<4>, part: Tensor<4>| {
            let [batch, heads, length, size] = part.dims();
            if length == 0 {
                return buffer;
            }
            buffer.slice_assign([0..batch, 0..heads, end..end + length, 0..size], part)
        };
        Self {
            keys: write(self.keys, keys),
            values: write(self.values, values),
            start: end - past,
            length: past + new,
        }
    }
}

/// Room for a window and a quarter, so that tokens are moved rarely.
fn rolling_capacity(window: usize) -> usize {
    window.saturating_add((window / 4).max(MINIMUM))
}
