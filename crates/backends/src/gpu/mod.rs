//! What backends of GPUs share: how a plan's weights are assembled and copied to a device, and why it is refused.

pub(crate) mod weights;

/// Why a device cannot run a plan: reasons, each once, in the order of the plan.
#[derive(Default)]
pub(crate) struct Reasons(pub(crate) Vec<String>);

impl Reasons {
    pub(crate) fn add(&mut self, reason: String) {
        if !self.0.contains(&reason) {
            self.0.push(reason);
        }
    }
}
