//! Causal models of text for which there are no packed weights: recurrent ones, Transformers whose attention has no kernel, and those that
//! compute on a card.

use burn::tensor::{Device, Int, Tensor, TensorData};
use regard_kernels::Kind;
use regard_nn::{devices::is_card, dropout::DropoutRng, mask::PaddingMask};

use crate::{
    erased::{AnyState, AnyTextModel},
    generator::Stepper,
    pretrained::{InputError, LONGEST, Look},
    scoring::CausalModel,
    vocabulary::Vocabulary,
};

/// The most tokens of a text that are read at once by steps, and whose logits are computed at once.
const PART: usize = 256;
/// The most tokens of several texts that are read at once, unless there are more texts.
const MOST_READ: usize = 16 * PART;

/// A causal model of text as it was trained.
#[derive(Debug)]
pub struct PlainTextModel {
    model: AnyTextModel,
    context: usize,
    device: Device,
    /// Whether texts of one length are read together: on a card. On the CPU each row has the bits that it has alone.
    pub(super) together: bool,
}

impl PlainTextModel {
    /// `model`, which is on `device`, unless it is a masked one.
    pub fn new(model: AnyTextModel, device: &Device) -> Option<Self> {
        model.begin(0, device)?;
        Some(Self {
            context: model.longest().unwrap_or(LONGEST),
            model,
            device: device.clone(),
            together: is_card(device),
        })
    }

    /// The same for texts of at most `context` tokens, if it reads as many.
    #[must_use]
    pub fn with_context(mut self, context: usize) -> Self {
        self.context = self.context.min(context);
        self
    }

    /// The model.
    pub fn model(&self) -> &AnyTextModel {
        &self.model
    }

    /// Reads `text` and gives its weights to `look`, which keeps those that are wanted.
    ///
    /// # Errors
    /// [`InputError`].
    pub fn look(&self, text: &[u32], look: &mut Look) -> Result<(), InputError> {
        self.check(text)?;
        let (ids, keep) = self.batch(text);
        for (layer, map) in self.model.look(ids, &keep).into_iter().enumerate() {
            let [_, heads, _, _] = map.dims();
            let weights: Vec<f32> = map.into_data().iter().collect();
            look.insert(layer, heads, &weights, self.model.is_normalized());
        }
        Ok(())
    }

    /// Whether it attends to its text, so that there are weights to look at.
    pub fn attends(&self) -> bool {
        let (ids, keep) = self.batch(&[0]);
        !self.model.look(ids, &keep).is_empty()
    }

    fn check(&self, text: &[u32]) -> Result<(), InputError> {
        let (tokens, context) = (text.len(), self.context());
        if tokens > context {
            return Err(InputError::Long { tokens, context });
        }
        let vocabulary = self.model.vocabulary().size;
        match text.iter().find(|&&id| id as usize >= vocabulary) {
            Some(&id) => Err(InputError::Token { id, vocabulary }),
            None => Ok(()),
        }
    }

    /// `ids [time, rows]`
    fn ids(&self, ids: Vec<u32>, rows: usize) -> Tensor<2, Int> {
        let time = ids.len() / rows;
        let ids: Vec<i32> = ids.into_iter().map(|id| id as i32).collect();
        Tensor::from_data(TensorData::new(ids, [time, rows]), &self.device)
    }

    /// The same, and that all of it is real.
    fn batch(&self, text: &[u32]) -> (Tensor<2, Int>, PaddingMask) {
        let keep = PaddingMask::from_lengths(&[text.len()], text.len(), &self.device);
        (self.ids(text.to_vec(), 1), keep)
    }
}

impl CausalModel for PlainTextModel {
    fn vocabulary(&self) -> usize {
        self.model.vocabulary().size
    }

    fn context(&self) -> usize {
        self.context
    }

    fn predict(
        &self,
        text: &[u32],
        first: usize,
        each: &mut dyn FnMut(usize, &mut [f32]),
    ) -> Result<(), InputError> {
        self.check(text)?;
        if first >= text.len() {
            return Ok(());
        }
        let (ids, keep) = self.batch(text);
        let scored = self.model.forward(ids, &keep, &mut DropoutRng::none());
        for at in (first..text.len()).step_by(PART) {
            let readout = scored.readout.clone();
            let readout = readout.narrow(0, at, PART.min(text.len() - at));
            let mut logits: Vec<f32> = scored.output.logits(readout).into_data().iter().collect();
            each(at, &mut logits);
        }
        Ok(())
    }

    fn read(&self, texts: &[&[u32]], cache: Kind) -> Result<Box<dyn Stepper + '_>, InputError> {
        self.read_telling(texts, cache, &mut |_| ())
    }

    /// On a card texts of one length are read together.
    fn read_telling(
        &self,
        texts: &[&[u32]],
        _cache: Kind,
        told: &mut dyn FnMut(usize),
    ) -> Result<Box<dyn Stepper + '_>, InputError> {
        let mut alike: Vec<(usize, Vec<usize>)> = vec![]; // a length, and its rows
        for (row, text) in texts.iter().enumerate() {
            self.check(text)?;
            let known = alike.iter_mut().find(|(length, _)| *length == text.len());
            match known.filter(|_| self.together) {
                Some((_, rows)) => rows.push(row),
                None => alike.push((text.len(), vec![row])),
            }
        }
        let (mut groups, mut done) = (vec![], 0);
        for (length, rows) in alike {
            let Some(mut state) = self.model.begin(rows.len(), &self.device) else {
                unreachable!("a causal model")
            };
            let most = (MOST_READ / rows.len()).clamp(1, PART);
            for first in (0..length).step_by(most) {
                let part = first..length.min(first + most);
                let ids = part
                    .clone()
                    .flat_map(|t| rows.iter().map(move |&row| (row, t)));
                let ids = ids.map(|(row, t)| texts[row][t]).collect();
                state = self.model.read(self.ids(ids, rows.len()), state);
                done += part.len() * rows.len();
                told(done);
            }
            groups.push(Alike { rows, state });
        }
        Ok(Box::new(PlainSteps {
            model: self,
            groups,
        }))
    }
}

/// Rows of one length, which make their steps together.
struct Alike {
    rows: Vec<usize>,
    state: AnyState,
}

struct PlainSteps<'a> {
    model: &'a PlainTextModel,
    groups: Vec<Alike>,
}

impl Stepper for PlainSteps<'_> {
    fn vocabulary(&self) -> Vocabulary {
        self.model.model.vocabulary()
    }

    fn step(&mut self, previous: &[u32], logits: &mut Vec<f32>) -> Option<Vec<f32>> {
        logits.clear();
        for Alike { rows, state } in &mut self.groups {
            let ids: Vec<i32> = rows.iter().map(|&row| previous[row] as i32).collect();
            let ids = Tensor::from_ints(ids.as_slice(), &self.model.device);
            let (output, next) = self.model.model.step(ids, state.clone());
            *state = next;
            let [_, classes] = output.logits.dims();
            let found: Vec<f32> = output.logits.into_data().iter().collect();
            logits.resize(previous.len() * classes, 0.0);
            for (row, found) in rows.iter().zip(found.chunks_exact(classes)) {
                logits[row * classes..][..classes].copy_from_slice(found);
            }
        }
        None
    }

    fn select(&mut self, rows: &[usize], _same_sources: bool) {
        for mut group in std::mem::take(&mut self.groups) {
            let of_group = |(new, old)| Some((new, group.rows.iter().position(|row| row == old)?));
            let (new, old): (Vec<_>, Vec<_>) = rows.iter().enumerate().filter_map(of_group).unzip();
            if !self.model.together {
                let alone = new.into_iter().map(|row| Alike {
                    rows: vec![row],
                    state: group.state.clone(),
                });
                self.groups.extend(alone);
            } else if !old.is_empty() {
                if !old.iter().copied().eq(0..group.rows.len()) {
                    group.state = group.state.select(&old, false);
                }
                group.rows = new;
                self.groups.push(group);
            }
        }
    }
}
