//! `sliding_window` of config.json: which windows there are, and when a file that has none is wrong.

use crate::Error;
use crate::checkpoint::HfSettings;

/// The window of config.json, for the layers that slide.
///
/// Zero is not none: in a layer that slides with it, a row of transformers sees not even itself. What comes of
/// that depends on the implementation of attention (all positions alike, later ones too, by `eager`; no window by
/// `flash_attention_2`), so such a file means nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HfWindow {
    /// Positions that a row sees, its own included.
    Of(usize),
    /// No layer slides, for this reason.
    Off(&'static str),
    /// The file has none.
    Null,
    /// The file has one of no positions.
    Zero,
}

impl HfWindow {
    /// The window of a family whose layers have to have one where they slide.
    ///
    /// # Errors
    /// If it is no whole number.
    pub(crate) fn needed(s: &HfSettings) -> Result<Self, Error> {
        Ok(match s.opt_usize("sliding_window")? {
            None => Self::Null,
            Some(0) => Self::Zero,
            Some(window) => Self::Of(window),
        })
    }

    /// The window of a family in which nothing slides where the file has none.
    ///
    /// # Errors
    /// If it is no whole number.
    pub(crate) fn optional(s: &HfSettings) -> Result<Self, Error> {
        Ok(match Self::needed(s)? {
            Self::Null => Self::Off("`sliding_window` is null"),
            window => window,
        })
    }

    /// The same, where `use_sliding_window` turns it on.
    ///
    /// # Errors
    /// If the switch is neither true nor false.
    pub(crate) fn switched(self, s: &HfSettings) -> Result<Self, Error> {
        Ok(match s.bool_or("use_sliding_window", false)? {
            true => self,
            false => Self::Off("`use_sliding_window` is false"),
        })
    }

    /// Why layers cannot have one.
    pub(super) fn reason(self) -> &'static str {
        match self {
            Self::Of(_) => "there is a `sliding_window`",
            Self::Off(reason) => reason,
            Self::Null => "`sliding_window` is null",
            Self::Zero => "`sliding_window` is 0",
        }
    }

    /// The window of layers that slide if there is one; `None` where nothing slides.
    ///
    /// # Errors
    /// If they would have to have one.
    pub(crate) fn of_every_layer(self, s: &HfSettings) -> Result<Option<usize>, Error> {
        match self {
            Self::Of(window) => Ok(Some(window)),
            Self::Off(_) => Ok(None),
            Self::Null | Self::Zero => {
                Err(s.wrong("sliding_window", "a number of positions above 0"))
            }
        }
    }
}
