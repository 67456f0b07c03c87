//! Devices: an app's own, recorded into its own encoder; refusals and failures arrive as errors.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod common;

use common::{Call, close, gpu, noise};
use wgpu_attention::{Attention, AttentionOutput, DType, Error, Gpu, Tensor};

/// A device as an app might have opened it: default limits, no features.
fn plain_device() -> (wgpu::Device, wgpu::Queue) {
    let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle_from_env());
    let adapter =
        pollster::block_on(instance.request_adapter(&wgpu::RequestAdapterOptions::default())).unwrap();
    pollster::block_on(adapter.request_device(&wgpu::DeviceDescriptor::default())).unwrap()
}

#[test]
fn an_apps_own_device_encoder_and_buffer_slices() {
    let (device, queue) = plain_device();
    let gpu = Gpu::from_wgpu(&device, &queue);
    assert_eq!(gpu.limits().subgroup, None);
    let call = Call::new([1, 2, 1, 3, 7, 8, 8]);
    // q, k and v one after another in one buffer, none at its start; results in the middle of another
    let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
    let descriptor = |size| wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false };
    let inputs = device.create_buffer(&descriptor(4096));
    let outputs = device.create_buffer(&descriptor(4096));
    queue.write_buffer(&outputs, 0, &[0xab; 4096]);
    let mut at = 20;
    let mut slice = |data: &[f32], shape: [usize; 4]| {
        let tensor = Tensor::from_buffer(&inputs, at, data.len() as u64 * 4, DType::F32, shape).unwrap();
        queue.write_buffer(&inputs, at, bytemuck::cast_slice(data));
        at += data.len() as u64 * 4 + 12;
        tensor
    };
    let q = slice(&call.q, [1, 2, 3, 8]);
    let k = slice(&call.k, [1, 1, 7, 8]);
    let v = slice(&call.v, [1, 1, 7, 8]);
    let out = AttentionOutput {
        o: Tensor::from_buffer(&outputs, 516, 48 * 4, DType::F32, [1, 2, 3, 8]).unwrap(),
        lse: Some(Tensor::from_buffer(&outputs, 2048, 24, DType::F32, [1, 2, 3]).unwrap()),
    };
    let mut encoder = device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    Attention::causal().record(&gpu, &mut encoder, &q, &k, &v, &out).unwrap();
    queue.submit([encoder.finish()]);
    let (o, lse) = call.reference();
    close("o", &out.o.read::<f32>(&gpu).unwrap(), &o, 2e-5, 0.0);
    close("lse", &out.lse.unwrap().read::<f32>(&gpu).unwrap(), &lse, 2e-5, 0.0);
    // nothing around the results was touched
    let all = Tensor::from_buffer(&outputs, 0, 4096, DType::U32, [1024]).unwrap().read::<u32>(&gpu).unwrap();
    for (word, &value) in all.iter().enumerate() {
        let ours = (129..129 + 48).contains(&word) || (512..518).contains(&word);
        assert!(ours || value == 0xabab_abab, "word {word}");
    }
    // results beside inputs cannot be bound
    let inside = AttentionOutput {
        o: Tensor::from_buffer(&inputs, 2048, 48 * 4, DType::F32, [1, 2, 3, 8]).unwrap(),
        lse: None,
    };
    let mut encoder = device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    let error = Attention::causal().record(&gpu, &mut encoder, &q, &k, &v, &inside).unwrap_err();
    assert_eq!(error, Error::SharedBuffer { field: "o", other: "q" });
}

#[test]
fn steps_after_a_prefill_equal_one_prefill() {
    let gpu = gpu();
    let (n, d) = (21, 16);
    let rows = |seed, n: usize| noise(seed, n * d);
    let (q, kv) = (rows(5, n), rows(6, n));
    let tensor = |data: &[f32]| Tensor::from_slice(gpu, data, [1, 1, data.len() / d, d]).unwrap();
    for attention in [Attention::causal(), Attention::causal().window(5), Attention::causal().chunk(8)] {
        let all = attention.run(gpu, &tensor(&q), &tensor(&kv), &tensor(&kv)).unwrap();
        let all = all.o.read::<f32>(gpu).unwrap();
        for step in [1, 5, n - 1] {
            let seen = tensor(&kv[..(step + 1) * d]);
            let one = attention.run(gpu, &tensor(&q[step * d..(step + 1) * d]), &seen, &seen).unwrap();
            let want: Vec<_> = all[step * d..(step + 1) * d].iter().map(|&x| f64::from(x)).collect();
            close("step", &one.o.read::<f32>(gpu).unwrap(), &want, 1e-6, 0.0);
        }
    }
}

#[test]
fn calls_share_an_encoder_and_write_where_they_are_told() {
    let gpu = gpu();
    // both need scratch memory: partial results, and 16-bit rows that are not whole words
    let split = Call { splits: Some(3), ..Call::new([2, 2, 1, 3, 100, 8, 8]) };
    let odd = Call {
        splits: Some(2),
        dtypes: [DType::F32, DType::F32, DType::F16],
        ..Call::new([1, 1, 1, 3, 90, 5, 5])
    };
    let mut encoder = gpu.device().create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    // the first writes [batch, seq, heads, dim] through a view
    let by_position = Tensor::from_slice(gpu, &[f32::NAN; 2 * 3 * 2 * 8], [2, 3, 2, 8]).unwrap();
    let first = AttentionOutput { o: by_position.permute(&[0, 2, 1, 3]), lse: None };
    let second = AttentionOutput {
        o: Tensor::uninitialised(gpu, DType::F16, [1, 1, 3, 5]).unwrap(),
        lse: Some(Tensor::uninitialised(gpu, DType::F32, [1, 1, 3]).unwrap()),
    };
    for (call, out) in [(&split, &first), (&odd, &second)] {
        let [q, k, v] = call.tensors(gpu);
        call.attention(gpu).record(gpu, &mut encoder, &q, &k, &v, out).unwrap();
    }
    // nothing was submitted by then
    assert!(by_position.read::<f32>(gpu).unwrap().iter().all(|x| x.is_nan()));
    gpu.submit(encoder).unwrap();
    close("first", &first.o.read::<f32>(gpu).unwrap(), &split.reference().0, 2e-5, 0.0);
    close("second", &second.o.read_f32(gpu).unwrap(), &odd.reference().0, 2e-5, 2f64.powi(-11));
}

#[test]
fn an_apps_device_that_is_gone_says_so() {
    let (device, queue) = plain_device();
    let gpu = Gpu::from_wgpu(&device, &queue);
    let [q, k, v] = Call::new([1, 1, 1, 2, 3, 8, 8]).tensors(&gpu);
    device.destroy();
    let result = Attention::causal().run(&gpu, &q, &k, &v).and_then(|out| out.o.read::<f32>(&gpu));
    assert!(matches!(result, Err(Error::DeviceLost { .. } | Error::Device { .. })), "{result:?}");
}

#[test]
fn what_the_device_refuses_arrives_as_an_error() {
    let gpu = gpu();
    let tensor = Tensor::from_slice(gpu, &[0.0_f32; 16], [1, 1, 2, 8]).unwrap();
    assert!(tensor.read::<u32>(gpu).unwrap_err().to_string().starts_with("tensor is stored as f32"));
    // a buffer that cannot be bound, and one that is destroyed
    let descriptor = wgpu::BufferDescriptor {
        label: None,
        size: 256,
        usage: wgpu::BufferUsages::COPY_DST,
        mapped_at_creation: false,
    };
    let buffer = gpu.device().create_buffer(&descriptor);
    let error = Tensor::from_buffer(&buffer, 0, 64, DType::F32, [1, 1, 2, 8]).unwrap_err();
    assert!(error.to_string().contains("BufferUsages::STORAGE"), "{error}");
    let gone = Tensor::from_slice(gpu, &[0.0_f32; 16], [1, 1, 2, 8]).unwrap();
    gone.buffer().destroy();
    let result = Attention::causal().run(gpu, &gone, &gone, &gone).and_then(|out| out.o.read::<f32>(gpu));
    assert!(matches!(result, Err(Error::Device { .. })), "{result:?}");
}

#[test]
fn an_adapter_that_is_not_there_is_named() {
    let error = Gpu::builder().adapter("Voodoo 5").build().unwrap_err().to_string();
    assert!(error.starts_with("no adapter matches name \"Voodoo 5\"; present: "), "{error}");
    let error = Gpu::builder().workgroup_memory(1 << 30).build().unwrap_err().to_string();
    assert!(error.starts_with("workgroup_memory is 1073741824"), "{error}");
}
