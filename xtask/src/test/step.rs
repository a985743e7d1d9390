//! The steps of `cargo xtask test`: their order, and what each needs.

use clap::ValueEnum;

use crate::setup::Need;

/// The steps, in the order they start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Step {
    /// Formatting.
    Fmt,
    /// House rules.
    Tidy,
    /// Licences and sources of the dependencies, and their advisories where cargo-deny is installed.
    Deny,
    /// Lints, and whether the engine compiles without its optional features.
    Clippy,
    /// Documentation builds without a warning.
    Doc,
    /// Lints for Windows and macOS where their inputs changed (needs rustup and pip).
    Platforms,
    /// Compiles the tests, the engine among them, and the workspace's own commands.
    Build,
    /// Unit, integration and doc tests; GPU tests on lavapipe where that is installed.
    Tests,
    /// The server under hostile requests, beside a stream whose times are bounded (Linux alone).
    Hostile,
    /// Programs outside of the workspace that use each library crate as it is packaged.
    Packages,
    /// Tiny models against transformers, and bit-identity; every tier of the CPU.
    Parity,
    /// Tiny models on the CUDA backend, on the interpreter of its kernels.
    CudaParity,
    /// Tiny models on wgpu, on lavapipe with three vector widths.
    GpuParity,
    /// Tests of GPU code with lavapipe's other vector widths (Linux alone).
    GpuTests,
    /// The files in `deploy`, by what reads them: published schemas, linters, the server (needs pip).
    Manifests,
    /// The page of the server: its types, its unit tests, and what it does in a browser.
    Web,
    /// The console blocks of the documents, with a published model.
    Documents,
    /// Real models against the F32 reference.
    Real,
    /// Real models on wgpu.
    GpuReal,
}

/// What runs at the same time as a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Beside {
    /// Nothing: it keeps all processors busy, takes cargo's lock, or measures times.
    Nothing,
    /// One other step.
    Another,
}

impl Step {
    pub(super) fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |v| v.get_name().to_owned())
    }

    /// What the step needs beside the repository.
    pub(super) fn needs(self) -> &'static [Need] {
        match self {
            Self::Fmt | Self::Clippy | Self::Tidy | Self::Deny | Self::Doc | Self::Build => &[],
            Self::Parity | Self::CudaParity => &[],
            Self::Tests => &[Need::Vocabularies, Need::Driver],
            Self::Packages => &[Need::Driver],
            Self::Real | Self::Documents | Self::Hostile => &[Need::Models],
            Self::Manifests => &[Need::Schemas],
            Self::Platforms => &[Need::Compiler],
            Self::Web => &[Need::Browser],
            Self::GpuTests | Self::GpuParity => &[Need::Driver],
            Self::GpuReal => &[Need::Driver, Need::Models],
        }
    }

    pub(super) fn beside(self) -> Beside {
        match self {
            Self::Fmt | Self::Tidy | Self::Deny | Self::Clippy | Self::Doc => Beside::Nothing,
            Self::Platforms | Self::Build | Self::Tests | Self::Hostile => Beside::Nothing,
            Self::Packages | Self::Parity | Self::CudaParity | Self::GpuParity => Beside::Another,
            Self::GpuTests | Self::Manifests | Self::Web | Self::Documents => Beside::Another,
            Self::Real | Self::GpuReal => Beside::Another,
        }
    }

    /// Whether it runs programs that [`Step::Build`] makes.
    pub(super) fn runs_built(self) -> bool {
        self.is_of_all() || matches!(self, Self::Manifests | Self::Documents | Self::GpuTests)
    }

    /// Whether its work is among the commands of the crate feature `all`.
    pub(super) fn is_of_all(self) -> bool {
        matches!(
            self,
            Self::Hostile
                | Self::Parity
                | Self::CudaParity
                | Self::GpuParity
                | Self::Web
                | Self::Real
                | Self::GpuReal
        )
    }
}
