//! What every slice must hold.

use super::backward::{InputFeedingGradients, InputFeedingResult};
use super::{InputFeedingDecoder, InputFeedingSaved, Score};
use crate::error::{KernelError, check_length};
use crate::sequence::rows::check_gradients;

impl InputFeedingDecoder<'_> {
    pub(super) fn check(&self) -> Result<(), KernelError> {
        let Self {
            steps,
            batch,
            sources,
            hidden: n,
            layers,
            value,
            ..
        } = *self;
        let wide = 4usize.saturating_mul(n);
        let check = check_length;
        if layers == 0 {
            let expected = "at least 1";
            return Err(KernelError::Value {
                argument: "layers",
                expected,
                found: 0.0,
            });
        }
        let shape = "[steps, batch, 4 hidden]";
        check(
            "x_projection",
            shape,
            &[steps, batch, wide],
            self.x_projection.len(),
        )?;
        check("feed", "[batch, hidden]", &[batch, n], self.feed.len())?;
        check(
            "feed_weight",
            "[hidden, 4 hidden]",
            &[n, wide],
            self.feed_weight.len(),
        )?;
        let shape = "[layers, hidden, 4 hidden]";
        check("recurrent", shape, &[layers, n, wide], self.recurrent.len())?;
        let shape = "[layers - 1, hidden, 4 hidden]";
        check(
            "layer_weight",
            shape,
            &[layers - 1, n, wide],
            self.layer_weight.len(),
        )?;
        let shape = "[layers - 1, 4 hidden]";
        check(
            "layer_bias",
            shape,
            &[layers - 1, wide],
            self.layer_bias.len(),
        )?;
        let shape = "[layers, batch, hidden]";
        check(
            "initial_hidden",
            shape,
            &[layers, batch, n],
            self.initial_hidden.len(),
        )?;
        check(
            "initial_cell",
            shape,
            &[layers, batch, n],
            self.initial_cell.len(),
        )?;
        let attention = self.attention();
        if let Score::Additive {
            query_weight,
            vector,
            ..
        } = self.score
        {
            let shape = "[hidden, attention]";
            check(
                "score.query_weight",
                shape,
                &[n, attention],
                query_weight.len(),
            )?;
            check("score.vector", "[attention]", &[attention], vector.len())?;
        }
        let shape = "[batch, sources, hidden] for dot, [batch, sources, attention] for additive";
        check("keys", shape, &[batch, sources, attention], self.keys.len())?;
        let shape = "[batch, sources, value]";
        check("values", shape, &[batch, sources, value], self.values.len())?;
        let shape = "[value + hidden, hidden]";
        let rows = value.saturating_add(n);
        check(
            "combine_weight",
            shape,
            &[rows, n],
            self.combine_weight.len(),
        )?;
        check("combine_bias", "[hidden]", &[n], self.combine_bias.len())?;
        if let Some(dropout) = self.dropout {
            let shape = "[steps, layers, batch, hidden]";
            check("dropout", shape, &[steps, layers, batch, n], dropout.len())?;
        }
        if let Some(windows) = self.windows {
            check("windows", "[steps, batch]", &[steps, batch], windows.len())?;
        }
        if let Some(keep) = self.keep_source {
            check(
                "keep_source",
                "[batch, sources]",
                &[batch, sources],
                keep.len(),
            )?;
        }
        Ok(())
    }

    pub(super) fn check_forward(
        &self,
        output: &[f32],
        weights: &[f32],
        saved: Option<&InputFeedingSaved<'_>>,
    ) -> Result<(), KernelError> {
        let Self {
            steps,
            batch,
            sources,
            hidden: n,
            layers,
            value,
            ..
        } = *self;
        let check = check_length;
        check(
            "output",
            "[steps, batch, hidden]",
            &[steps, batch, n],
            output.len(),
        )?;
        check(
            "weights",
            "[steps, batch, sources]",
            &[steps, batch, sources],
            weights.len(),
        )?;
        if let Some(saved) = saved {
            let shape = "[layers, steps, batch, 4 hidden]";
            check(
                "saved.gates",
                shape,
                &[layers, steps, batch, 4, n],
                saved.gates.len(),
            )?;
            let shape = "[layers, steps, batch, 2 hidden]";
            check(
                "saved.states",
                shape,
                &[layers, steps, batch, 2, n],
                saved.states.len(),
            )?;
            let shape = "[steps, batch, value]";
            check(
                "saved.contexts",
                shape,
                &[steps, batch, value],
                saved.contexts.len(),
            )?;
            let shape = "[steps, batch, hidden]";
            check(
                "saved.combined",
                shape,
                &[steps, batch, n],
                saved.combined.len(),
            )?;
            let shape = "[steps, batch, attention], empty for dot";
            check(
                "saved.queries",
                shape,
                &[steps, batch, self.query_width()],
                saved.queries.len(),
            )?;
        }
        Ok(())
    }

    pub(super) fn check_backward(
        &self,
        result: &InputFeedingResult<'_>,
        d_output: &[f32],
        to: &InputFeedingGradients<'_>,
    ) -> Result<(), KernelError> {
        let Self {
            steps,
            batch,
            sources,
            hidden: n,
            layers,
            value,
            ..
        } = *self;
        let check = check_length;
        let shape = "[steps, batch, hidden]";
        check("output", shape, &[steps, batch, n], result.output.len())?;
        check("d_output", shape, &[steps, batch, n], d_output.len())?;
        check("combined", shape, &[steps, batch, n], result.combined.len())?;
        check(
            "weights",
            "[steps, batch, sources]",
            &[steps, batch, sources],
            result.weights.len(),
        )?;
        let shape = "[layers, steps, batch, 4 hidden]";
        check(
            "gates",
            shape,
            &[layers, steps, batch, 4, n],
            result.gates.len(),
        )?;
        let shape = "[layers, steps, batch, 2 hidden]";
        check(
            "states",
            shape,
            &[layers, steps, batch, 2, n],
            result.states.len(),
        )?;
        check(
            "contexts",
            "[steps, batch, value]",
            &[steps, batch, value],
            result.contexts.len(),
        )?;
        let shape = "[steps, batch, attention], empty for dot";
        check(
            "queries",
            shape,
            &[steps, batch, self.query_width()],
            result.queries.len(),
        )?;
        check_gradients([
            (
                "gradients.x_projection",
                self.x_projection,
                &*to.x_projection,
            ),
            ("gradients.feed", self.feed, &*to.feed),
            ("gradients.feed_weight", self.feed_weight, &*to.feed_weight),
            ("gradients.recurrent", self.recurrent, &*to.recurrent),
            (
                "gradients.layer_weight",
                self.layer_weight,
                &*to.layer_weight,
            ),
            ("gradients.layer_bias", self.layer_bias, &*to.layer_bias),
            (
                "gradients.initial_hidden",
                self.initial_hidden,
                &*to.initial_hidden,
            ),
            (
                "gradients.initial_cell",
                self.initial_cell,
                &*to.initial_cell,
            ),
            ("gradients.keys", self.keys, &*to.keys),
            ("gradients.values", self.values, &*to.values),
            (
                "gradients.combine_weight",
                self.combine_weight,
                &*to.combine_weight,
            ),
            (
                "gradients.combine_bias",
                self.combine_bias,
                &*to.combine_bias,
            ),
        ])?;
        if let Score::Additive {
            query_weight,
            vector,
            ..
        } = self.score
        {
            let (weight, v) = to
                .score
                .as_ref()
                .map_or((0, 0), |s| (s.query_weight.len(), s.vector.len()));
            check(
                "gradients.score.query_weight",
                "[hidden, attention]",
                &[query_weight.len()],
                weight,
            )?;
            check("gradients.score.vector", "[attention]", &[vector.len()], v)?;
        }
        Ok(())
    }
}
