//! Models that draft tokens by themselves: whether their layer for multi-token prediction is loaded, and what it
//! predicts.

use super::chunk::{Chunk, Outputs};
use super::model::Model;
use super::options::LoadOptions;
use super::placement::DeviceLayers;
use super::require_output;
use crate::Error;
use realizar_backends::Phase;
use realizar_model::architectures::ModelOutput;
use realizar_model::graph::Graph;

/// Draft tokens that a step has room for beside a row of each answer.
pub(super) const DRAFTS: usize = 8;

/// Whether a model's layer for multi-token prediction is loaded, with which an engine drafts tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DraftHead {
    /// No.
    #[default]
    Off,
    /// If the model has one and its devices can run it.
    Auto,
    /// Yes; a model without one is an error.
    On,
}

impl DraftHead {
    fn refuse<T>(reason: &str) -> Result<T, Error> {
        Err(Error::Option { option: "draft-head", reason: reason.to_owned() })
    }

    /// Refuses a model without a layer that was requested.
    pub(super) fn check(self, graph: &Graph) -> Result<(), Error> {
        match (self, &graph.draft) {
            (Self::On, None) => Self::refuse("the model has no multi-token prediction layer"),
            _ => Ok(()),
        }
    }
}

/// The options for these devices: a layer for multi-token prediction runs on one device that has the whole model.
pub(super) fn with_draft_head(
    options: &LoadOptions,
    devices: &[DeviceLayers<'_>],
) -> Result<LoadOptions, Error> {
    let is_alone = matches!(devices, [device] if device.backend.n_ranks() == 1);
    let runs = devices.iter().all(|device| device.backend.drafts());
    let reason = match (is_alone, runs) {
        (true, true) => return Ok(options.clone()),
        (false, _) => {
            "a model on several devices cannot draft with its multi-token prediction layer"
        }
        (true, false) => "this device does not support the model's multi-token prediction layer",
    };
    if options.draft_head == DraftHead::On {
        return DraftHead::refuse(reason);
    }
    Ok(LoadOptions { draft_head: DraftHead::Off, ..options.clone() })
}

/// The token with the largest logit, the first of several.
pub(crate) fn likeliest(logits: &[f32]) -> u32 {
    let first = (0, f32::NEG_INFINITY);
    let likeliest = logits.iter().enumerate();
    likeliest.fold(first, |most, (i, &x)| if x > most.1 { (i, x) } else { most }).0 as u32
}

impl Model {
    /// Runs a prompt in chunks of at most `chunk` tokens, and drafts `n` tokens after the one that is likeliest to follow
    /// it, each of which is likeliest by the model's own layer for multi-token prediction. Returns the logits that they
    /// were chosen from, each `[vocab_size]`.
    ///
    /// # Errors
    /// If a token is not in the vocabulary, the tokens do not fit the context, the model was loaded without such a
    /// layer, or the device fails.
    pub fn draft_logits(
        &mut self,
        ids: &[u32],
        n: usize,
        chunk: usize,
    ) -> Result<Vec<Vec<f32>>, Error> {
        let runner = self.runner();
        require_output(runner.output(), ModelOutput::Logits)?;
        if runner.hidden_dim().is_none() {
            return DraftHead::refuse(
                "the model was loaded without its multi-token prediction layer",
            );
        }
        if ids.is_empty() || ids.len() + n > runner.max_seq_len() {
            let (len, most) = (ids.len(), runner.max_seq_len());
            let text = format!(
                "{n} draft tokens after a prompt of {len} do not fit the context of {most}"
            );
            return Err(Error::Request(text));
        }
        let chunk = chunk.clamp(1, runner.limits().tokens);
        let (seq, mut token, mut hidden) = (runner.new_sequence(), 0, Vec::new());
        for rows in ids.chunks(chunk) {
            let (phase, outputs) = (Phase::Prefill, Outputs::Last);
            let logits = runner.step(&[Chunk { seq: &seq, rows: rows.into(), phase, outputs }])?;
            token = likeliest(logits.row(0, 0));
            hidden = runner.hidden(0, 0).unwrap_or_default().to_vec();
        }
        runner.begin_draft(std::iter::once((&seq, n)))?;
        let mut all = Vec::with_capacity(n);
        for depth in 0..n {
            let logits = runner.draft(std::iter::once((&seq, token)), depth, &hidden)?;
            all.push(logits.row(0, 0).to_vec());
            token = likeliest(logits.row(0, 0));
            hidden.copy_from_slice(runner.hidden(0, 0).unwrap_or_default());
        }
        runner.end_draft(std::iter::once(&seq));
        Ok(all)
    }
}
