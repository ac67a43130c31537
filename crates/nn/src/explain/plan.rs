//! Which path computes a mechanism on tensors: a kernel, or plain operations, and why.

use burn::tensor::{Device, Tensor};

use super::{Example, ExplainError, check, modules};
use crate::{AttentionOptions, KernelPlan, Unserved};

impl Example {
    /// Which kernel serves the mechanism on `f32` tensors of the example's sizes on `device`, or why none does.
    ///
    /// ```
    /// use burn::tensor::Device;
    /// use regard_nn::explain::Example;
    ///
    /// let unserved = Example::on_words("sparsemax")?.plan(&Device::flex())?.unwrap_err();
    /// # if cfg!(feature = "kernels") {
    /// assert_eq!(unserved.to_string(), "no kernel serves the sparsemax normaliser: plain operations");
    /// # }
    /// # Ok::<(), regard_nn::explain::ExplainError>(())
    /// ```
    ///
    /// # Errors
    /// As [`explain`](super::explain).
    pub fn plan(&self, device: &Device) -> Result<Result<KernelPlan, Unserved>, ExplainError> {
        let values = check::check(self)?;
        let attention = modules::attention(self, self.mask()?);
        let [query, value] = [&self.queries, &values].map(|rows| {
            let shape = [1, 1, rows.len(), rows[0].len()];
            Tensor::<4>::zeros(shape, device)
        });
        Ok(attention.plan(&query, &value, &AttentionOptions::default()))
    }
}
