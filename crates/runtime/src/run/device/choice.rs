//! Devices as people write them.

use super::refused;
use crate::Error;
use std::fmt;
use std::str::FromStr;

/// A device as people choose it: `auto`, `cpu`, `wgpu`, `wgpu:1`, `cuda`, `cuda:0`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The first hardware GPU that can run the model, else the processor.
    #[default]
    Auto,
    /// The processor.
    Cpu,
    /// A GPU by Vulkan, Metal or DX12: the one of this index in [`devices`](super::devices), or
    /// the first, be it a driver in software.
    Wgpu(Option<usize>),
    /// A GPU of NVIDIA, by its driver: the one of this index, or the first.
    Cuda(Option<usize>),
    /// The interpreter of CUDA kernels, in builds for tests.
    CudaInterpreter,
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, index) = match self {
            Self::Auto => ("auto", None),
            Self::Cpu => ("cpu", None),
            Self::Wgpu(index) => ("wgpu", *index),
            Self::Cuda(index) => ("cuda", *index),
            Self::CudaInterpreter => ("cuda-interpreter", None),
        };
        match index {
            Some(index) => write!(f, "{name}:{index}"),
            None => f.write_str(name),
        }
    }
}

impl FromStr for DeviceChoice {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let parsed = match text.split_once(':') {
            None => match text {
                "auto" => Some(Self::Auto),
                "cpu" => Some(Self::Cpu),
                "wgpu" => Some(Self::Wgpu(None)),
                "cuda" => Some(Self::Cuda(None)),
                "cuda-interpreter" => Some(Self::CudaInterpreter),
                _ => None,
            },
            Some((name, index)) => match (name, index.parse::<u32>()) {
                ("wgpu", Ok(index)) => Some(Self::Wgpu(Some(index as usize))),
                ("cuda", Ok(index)) => Some(Self::Cuda(Some(index as usize))),
                _ => None,
            },
        };
        parsed.ok_or_else(|| {
            refused(format!(
                "unknown device `{text}`, expected auto, cpu, wgpu, wgpu:N, cuda or cuda:N"
            ))
        })
    }
}

/// The devices that a model lies on, as people write them: one, or several with commas between
/// them in the order of the layers, each with the most layers that it takes after an equals sign.
/// Those without a number share what the others leave: `wgpu:0=20,wgpu:1=20,cpu`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceList(Vec<(DeviceChoice, Option<usize>)>);

impl DeviceList {
    /// The devices, each with the most layers that it takes.
    pub fn devices(&self) -> &[(DeviceChoice, Option<usize>)] {
        &self.0
    }

    /// The device of the whole model, if there is one.
    pub fn whole(&self) -> Option<DeviceChoice> {
        match self.0[..] {
            [(device, None)] => Some(device),
            _ => None,
        }
    }
}

impl Default for DeviceList {
    fn default() -> Self {
        DeviceChoice::default().into()
    }
}

impl From<DeviceChoice> for DeviceList {
    fn from(device: DeviceChoice) -> Self {
        Self(vec![(device, None)])
    }
}

impl fmt::Display for DeviceList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (device, n_layers)) in self.0.iter().enumerate() {
            write!(f, "{}{device}", if i > 0 { "," } else { "" })?;
            if let Some(n) = n_layers {
                write!(f, "={n}")?;
            }
        }
        Ok(())
    }
}

impl FromStr for DeviceList {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let one = |text: &str| -> Result<_, Error> {
            let Some((device, n_layers)) = text.split_once('=') else {
                return Ok((text.parse()?, None));
            };
            let number = n_layers.parse::<u32>();
            let number =
                number.map_err(|_| refused(format!("`{n_layers}` is not a number of layers")))?;
            Ok((device.parse()?, Some(number as usize)))
        };
        let list = text.split(',').map(one).collect::<Result<Vec<(DeviceChoice, _)>, _>>()?;
        for (i, &(device, n_layers)) in list.iter().enumerate() {
            if device == DeviceChoice::Auto && (list.len() > 1 || n_layers.is_some()) {
                return Err(refused(
                    "`auto` cannot be combined: it selects one device for the whole model"
                        .to_owned(),
                ));
            }
            if list[..i].iter().any(|&(other, _)| other == device) {
                return Err(refused(format!("`{device}` is listed twice")));
            }
        }
        Ok(Self(list))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_written_as_they_are_read() {
        for (text, choice) in [
            ("auto", DeviceChoice::Auto),
            ("cpu", DeviceChoice::Cpu),
            ("wgpu", DeviceChoice::Wgpu(None)),
            ("wgpu:0", DeviceChoice::Wgpu(Some(0))),
            ("wgpu:12", DeviceChoice::Wgpu(Some(12))),
            ("cuda", DeviceChoice::Cuda(None)),
            ("cuda:3", DeviceChoice::Cuda(Some(3))),
            ("cuda-interpreter", DeviceChoice::CudaInterpreter),
        ] {
            assert_eq!(text.parse::<DeviceChoice>().expect(text), choice);
            assert_eq!(choice.to_string(), text);
        }
        for text in ["", "gpu", "CPU", "cpu:0", "auto:1", "wgpu:", "wgpu:-1", "wgpu:x", "wgpu:1:2"]
        {
            let error = text.parse::<DeviceChoice>().expect_err(text).to_string();
            assert!(
                error.starts_with(&format!("device: unknown device `{text}`, expected auto")),
                "{error}"
            );
        }
    }

    #[test]
    fn lists_are_written_as_they_are_read() {
        use DeviceChoice::{Cpu, Cuda, Wgpu};
        for (text, expected) in [
            ("cpu", vec![(Cpu, None)]),
            ("wgpu=3,cpu", vec![(Wgpu(None), Some(3)), (Cpu, None)]),
            (
                "cuda:0,cuda:1=12,cpu=0",
                vec![(Cuda(Some(0)), None), (Cuda(Some(1)), Some(12)), (Cpu, Some(0))],
            ),
        ] {
            let list = text.parse::<DeviceList>().expect(text);
            assert_eq!(list.devices(), expected);
            assert_eq!(list.to_string(), text);
        }
        for (text, expected) in [
            ("", "unknown device ``"),
            ("cpu,", "unknown device ``"),
            ("cpu,gpu", "unknown device `gpu`"),
            ("cpu=", "`` is not a number of layers"),
            ("cpu=-1", "`-1` is not a number of layers"),
            ("cpu=all", "`all` is not a number of layers"),
            ("cpu,wgpu,cpu=1", "`cpu` is listed twice"),
            ("auto,cpu", "`auto` cannot be combined"),
            ("auto=3", "`auto` cannot be combined"),
        ] {
            let error = text.parse::<DeviceList>().expect_err(text).to_string();
            assert!(error.starts_with(&format!("device: {expected}")), "{text}: {error}");
        }
    }
}
