//! Command-line options of `bench_cuda`.

use std::path::PathBuf;
use std::str::FromStr;

use realizar_quant::BlockType;

use crate::{BLOCK_TYPES, BenchError};

pub(super) const HELP: &str = "\
Times each kernel of decode and prefill steps on a GPU, at the shapes of an 8B dense model and of a 30B-A3B model.

Usage: bench_cuda [OPTIONS]

  --gpu N          the GPU (default: 0)
  --interpreter    run small shapes on the interpreter of PTX instead, without times
  --describe       write what the GPU is as JSON, and end
  --list           list the cases, and end
  --load           load the kernels, which the driver compiles and caches, and end
  --only WORDS     only cases whose line in the table has all of these words; may be repeated for alternatives
  --types A,B      products with weights of these types instead of the plan
  --seconds N      start no case after so many seconds (default: 75)
  --json FILE      write a JSON object a line, each as soon as it is known";

/// The requested action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    Measure,
    Load,
    List,
    Describe,
    Help,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Options {
    pub(super) action: Action,
    pub(super) gpu: usize,
    pub(super) interpreter: bool,
    pub(super) only: Vec<String>,
    pub(super) types: Vec<BlockType>,
    pub(super) seconds: f64,
    pub(super) json: Option<PathBuf>,
}

fn number<T: FromStr>(name: &str, value: &str) -> Result<T, BenchError> {
    value.parse().map_err(|_| BenchError::Usage(format!("{name}: `{value}` is not a number")))
}

impl Options {
    pub(super) fn parse(args: impl IntoIterator<Item = String>) -> Result<Self, BenchError> {
        let mut options = Self {
            action: Action::Measure,
            gpu: 0,
            interpreter: false,
            only: Vec::new(),
            types: Vec::new(),
            seconds: 75.0,
            json: None,
        };
        let mut args = args.into_iter();
        while let Some(arg) = args.next() {
            let mut value = || {
                args.next().ok_or_else(|| BenchError::Usage(format!("{arg}: a value is missing")))
            };
            match arg.as_str() {
                "--gpu" => options.gpu = number(&arg, &value()?)?,
                "--interpreter" => options.interpreter = true,
                "--describe" => options.action = Action::Describe,
                "--list" => options.action = Action::List,
                "--load" => options.action = Action::Load,
                "--help" => options.action = Action::Help,
                "--only" => options.only.push(value()?),
                "--types" => {
                    for name in value()?.split(',') {
                        let ty = BlockType::from_name(name).ok_or_else(|| {
                            BenchError::Usage(format!("{arg}: `{name}` is not a type of weights"))
                        })?;
                        if !BLOCK_TYPES.contains(&ty) || !ty.can_quantize() {
                            return Err(BenchError::NoWeights(ty));
                        }
                        options.types.push(ty);
                    }
                }
                "--seconds" => {
                    let seconds: f64 = number(&arg, &value()?)?;
                    if !(0.0..=86_400.0).contains(&seconds) {
                        let message = format!("{arg}: `{seconds}` is not from 0 to 86400");
                        return Err(BenchError::Usage(message));
                    }
                    options.seconds = seconds;
                }
                "--json" => options.json = Some(value()?.into()),
                _ => return Err(BenchError::Usage(format!("unknown option `{arg}`"))),
            }
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &str) -> Result<Options, String> {
        Options::parse(args.split_whitespace().map(str::to_owned)).map_err(|e| e.to_string())
    }

    #[test]
    fn arguments_are_read() {
        let options = parse("--gpu 1 --only decode --only wgmma --types Q5_K,BF16 --seconds 2.5");
        let options = options.unwrap();
        assert_eq!((options.gpu, options.seconds), (1, 2.5));
        assert_eq!(options.only, ["decode", "wgmma"]);
        assert_eq!(options.types, [BlockType::Q5_K, BlockType::BF16]);
        assert_eq!(options.action, Action::Measure);
        assert_eq!(parse("--list --json a.json").unwrap().action, Action::List);
    }

    #[test]
    fn wrong_arguments_are_named() {
        let cases = [
            ("--fast", "unknown option `--fast`"),
            ("--gpu", "--gpu: a value is missing"),
            ("--gpu x", "--gpu: `x` is not a number"),
            ("--types Q4_K,Q99", "--types: `Q99` is not a type of weights"),
            ("--types Q8_1", "no random weights of type Q8_1"),
            ("--types IQ2_XXS", "no random weights of type IQ2_XXS"),
            ("--seconds -1", "--seconds: `-1` is not from 0 to 86400"),
            ("--seconds inf", "--seconds: `inf` is not from 0 to 86400"),
        ];
        for (args, expected) in cases {
            let message = parse(args).unwrap_err();
            assert!(message.starts_with(expected), "{message}");
        }
    }
}
