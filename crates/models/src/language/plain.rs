//! Causal models of text for which there are no packed weights: recurrent ones, Transformers whose attention has no kernel, and those that
//! compute on a card.

use burn::tensor::{Device, Int, Tensor, TensorData};
use regard_kernels::Kind;
use regard_nn::{dropout::DropoutRng, mask::PaddingMask};

use crate::{
    erased::{AnyState, AnyTextModel},
    generator::Stepper,
    pretrained::{InputError, LONGEST, Look},
    scoring::CausalModel,
    vocabulary::Vocabulary,
};

/// The most tokens that are read at once by steps, and whose logits are computed at once.
const PART: usize = 256;

/// A causal model of text as it was trained.
#[derive(Debug)]
pub struct PlainTextModel {
    model: AnyTextModel,
    context: usize,
    device: Device,
}

impl PlainTextModel {
    /// `model`, which is on `device`, unless it is a masked one.
    pub fn new(model: AnyTextModel, device: &Device) -> Option<Self> {
        model.begin(0, device)?;
        Some(Self {
            context: model.longest().unwrap_or(LONGEST),
            model,
            device: device.clone(),
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

    /// `[time, 1]`
    fn ids(&self, text: &[u32]) -> Tensor<2, Int> {
        let ids: Vec<i32> = text.iter().map(|&id| id as i32).collect();
        Tensor::from_data(TensorData::new(ids, [text.len(), 1]), &self.device)
    }

    /// The same, and that all of it is real.
    fn batch(&self, text: &[u32]) -> (Tensor<2, Int>, PaddingMask) {
        let keep = PaddingMask::from_lengths(&[text.len()], text.len(), &self.device);
        (self.ids(text), keep)
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

    /// Rows are read each for itself, and put together.
    fn read_telling(
        &self,
        texts: &[&[u32]],
        _cache: Kind,
        told: &mut dyn FnMut(usize),
    ) -> Result<Box<dyn Stepper + '_>, InputError> {
        let (mut rows, mut done) = (vec![], 0);
        for text in texts {
            self.check(text)?;
            let Some(mut state) = self.model.begin(1, &self.device) else {
                unreachable!("a causal model")
            };
            for part in text.chunks(PART) {
                state = self.model.read(self.ids(part), state);
                done += part.len();
                told(done);
            }
            rows.push(state);
        }
        Ok(Box::new(PlainSteps { model: self, rows }))
    }
}

/// One state a row: rows may be of different lengths.
struct PlainSteps<'a> {
    model: &'a PlainTextModel,
    rows: Vec<AnyState>,
}

impl Stepper for PlainSteps<'_> {
    fn vocabulary(&self) -> Vocabulary {
        self.model.model.vocabulary()
    }

    fn step(&mut self, previous: &[u32], logits: &mut Vec<f32>) -> Option<Vec<f32>> {
        logits.clear();
        for (state, &id) in self.rows.iter_mut().zip(previous) {
            let ids = Tensor::from_ints([id as i32], &self.model.device);
            let (output, next) = self.model.model.step(ids, state.clone());
            *state = next;
            logits.extend(output.logits.into_data().iter::<f32>());
        }
        None
    }

    fn select(&mut self, rows: &[usize], _same_sources: bool) {
        self.rows = rows.iter().map(|&row| self.rows[row].clone()).collect();
    }
}
