//! Cards that divide every layer of a model among them.

use super::{DeviceChoice, DeviceList, DeviceOptions, list};
use crate::Error;
use realizar_backends::Backend;

fn refused<T>(reason: String) -> Result<T, Error> {
    Err(Error::Option { option: "tensor-parallel", reason })
}

/// What the ranks are.
#[derive(Debug, PartialEq, Eq)]
enum Ranks {
    /// Cards by their indices.
    Cards(Vec<usize>),
    /// So many interpreters of their kernels.
    Interpreters(usize),
}

/// The ranks that a list of devices stands for; `auto` is the device that it tries first.
fn ranks(devices: &DeviceList, n_ranks: usize, auto: DeviceChoice) -> Result<Ranks, Error> {
    if n_ranks == 0 {
        return refused("must be at least 1".to_owned());
    }
    if devices.devices().iter().any(|(_, n_layers)| n_layers.is_some()) {
        return refused(
            "every layer is split across all devices, so --device takes no layer counts".to_owned(),
        );
    }
    let whole =
        devices.whole().map(|device| if device == DeviceChoice::Auto { auto } else { device });
    match whole {
        Some(DeviceChoice::CudaInterpreter) => return Ok(Ranks::Interpreters(n_ranks)),
        Some(DeviceChoice::Cuda(first))
            if first.is_none() || devices.whole() == Some(DeviceChoice::Auto) =>
        {
            return Ok(Ranks::Cards((0..n_ranks).collect()));
        }
        _ => {}
    }
    let card = |&(device, _): &(DeviceChoice, Option<usize>)| match device {
        DeviceChoice::Cuda(Some(card)) => Ok(card),
        DeviceChoice::Cuda(None) => refused("a list must name GPUs as cuda:N".to_owned()),
        DeviceChoice::Auto => refused(format!("requires NVIDIA GPUs, but `auto` is `{auto}`")),
        device => refused(format!("requires NVIDIA GPUs, but the device is `{device}`")),
    };
    let cards: Vec<usize> = devices.devices().iter().map(card).collect::<Result<_, _>>()?;
    if cards.len() != n_ranks {
        return refused(format!("--device lists {} of {n_ranks} GPUs", cards.len()));
    }
    Ok(Ranks::Cards(cards))
}

/// Opens the devices of a list as `n_ranks` ranks.
///
/// # Errors
/// If they are not cards of that number, or cannot be opened.
pub(super) fn open(
    devices: &DeviceList,
    gpu_layers: Option<usize>,
    n_ranks: usize,
    options: &DeviceOptions,
) -> Result<Box<dyn Backend>, Error> {
    if gpu_layers.is_some() {
        return refused(
            "every layer is split across all devices, so --gpu-layers does not apply".to_owned(),
        );
    }
    if options.gpu_plain {
        return refused("--gpu-plain does not apply to NVIDIA GPUs used with CUDA".to_owned());
    }
    match ranks(devices, n_ranks, list::auto())? {
        // One rank is a device as without.
        Ranks::Cards(cards) if n_ranks == 1 => {
            super::open(&DeviceChoice::Cuda(Some(cards[0])), options)
        }
        Ranks::Interpreters(1) => super::open(&DeviceChoice::CudaInterpreter, options),
        Ranks::Cards(cards) => open_cards(&cards, options),
        Ranks::Interpreters(n) => open_interpreters(n, options),
    }
}

#[cfg(feature = "cuda")]
fn open_cards(cards: &[usize], options: &DeviceOptions) -> Result<Box<dyn Backend>, Error> {
    Ok(Box::new(realizar_backends::cuda::CudaRanks::open(cards, super::of_cuda(options))?))
}

#[cfg(not(feature = "cuda"))]
fn open_cards(_: &[usize], _: &DeviceOptions) -> Result<Box<dyn Backend>, Error> {
    refused(list::NO_CUDA.to_owned())
}

#[cfg(feature = "cuda-interpreter")]
fn open_interpreters(n: usize, options: &DeviceOptions) -> Result<Box<dyn Backend>, Error> {
    let device = |_| super::interpreter(options);
    let mut ranks = realizar_backends::cuda::CudaRanks::new((0..n).map(device).collect())?;
    if options.cuda_bf16_decode {
        ranks = ranks.with_bf16_decode();
    }
    Ok(Box::new(if options.cuda_wgmma { ranks.with_wgmma()? } else { ranks }))
}

#[cfg(not(feature = "cuda-interpreter"))]
fn open_interpreters(_: usize, options: &DeviceOptions) -> Result<Box<dyn Backend>, Error> {
    super::open_interpreter(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_stands_for_as_many_ranks() {
        let auto = DeviceChoice::Cuda(Some(1));
        for (devices, n_ranks, expected) in [
            ("cuda", 2, Ranks::Cards(vec![0, 1])),
            ("auto", 3, Ranks::Cards(vec![0, 1, 2])),
            ("cuda:3", 1, Ranks::Cards(vec![3])),
            ("cuda:2,cuda:0", 2, Ranks::Cards(vec![2, 0])),
            ("cuda-interpreter", 4, Ranks::Interpreters(4)),
        ] {
            let list = devices.parse().expect(devices);
            assert_eq!(ranks(&list, n_ranks, auto).expect(devices), expected, "{devices}");
        }
        for (devices, n_ranks, auto, expected) in [
            ("cuda", 0, auto, "must be at least 1"),
            ("cuda:0=3,cuda:1", 2, auto, "every layer is split across all devices"),
            ("cuda:0", 2, auto, "--device lists 1 of 2 GPUs"),
            ("cuda:0,cuda:1,cuda:2", 2, auto, "--device lists 3 of 2 GPUs"),
            ("cuda:0,cuda", 2, auto, "a list must name GPUs as cuda:N"),
            ("cpu", 2, auto, "requires NVIDIA GPUs, but the device is `cpu`"),
            ("cuda:0,wgpu:1", 2, auto, "requires NVIDIA GPUs, but the device is `wgpu:1`"),
            ("auto", 2, DeviceChoice::Cpu, "requires NVIDIA GPUs, but `auto` is `cpu`"),
        ] {
            let list = devices.parse().expect(devices);
            let error = ranks(&list, n_ranks, auto).expect_err(devices).to_string();
            assert!(error.starts_with(&format!("tensor-parallel: {expected}")), "{error}");
        }
    }

    #[test]
    fn layers_are_not_placed_beside() {
        let options = DeviceOptions { tensor_parallel: Some(2), ..DeviceOptions::default() };
        let list = DeviceChoice::CudaInterpreter.into();
        let error = open(&list, Some(3), 2, &options).expect_err("layers").to_string();
        assert!(
            error.starts_with("tensor-parallel: every layer is split across all devices"),
            "{error}"
        );
        let options = DeviceOptions { gpu_plain: true, ..options };
        let error = open(&list, None, 2, &options).expect_err("plain").to_string();
        assert!(error.starts_with("tensor-parallel: --gpu-plain"), "{error}");
    }
}
