//! stub until merge
use crate::tokenizer::Tokenizer;
use realizar_formats::Metadata;
#[derive(Debug, Clone, thiserror::Error)]
#[error("x")]
pub struct Error;
#[derive(Debug)]
pub struct ChatTemplate;
impl ChatTemplate {
    pub fn from_gguf(_: &Metadata, _: &Tokenizer) -> Result<Option<Self>, Error> {
        Ok(None)
    }
    pub fn from_hf_dir(_: &std::path::Path, _: &Tokenizer) -> Result<Option<Self>, Error> {
        Ok(None)
    }
}
