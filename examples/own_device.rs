//! The README's lines at work: an app's own device, encoder and buffers; one submission, the app's.

use half::f16;
use wgpu_attention::{Attention, AttentionOutput, DType, Gpu, Tensor};

fn attend(
    device: &wgpu::Device,
    queue: &wgpu::Queue,
    encoder: &mut wgpu::CommandEncoder,
    cache: &wgpu::Buffer,
    q: &wgpu::Buffer,
    o: &wgpu::Buffer,
    kv_bytes: u64,
) -> wgpu_attention::Result<()> {
    let gpu = Gpu::from_wgpu(device, queue); // keep it: it holds pipelines
    let q = Tensor::from_buffer(q, 0, q.size(), DType::F32, [1, 32, 1, 128])?; // [batch, heads_q, seq_q, dim_k]
    let k = Tensor::from_buffer(cache, 0, kv_bytes, DType::F16, [1, 8, 4096, 128])?; // [batch, heads_kv, seq_kv, dim_k]
    let v = Tensor::from_buffer(cache, kv_bytes, kv_bytes, DType::F16, [1, 8, 4096, 128])?;
    let o = Tensor::from_buffer(o, 0, o.size(), DType::F32, [1, 32, 1, 128])?;
    Attention::causal().record(&gpu, encoder, &q, &k, &v, &AttentionOutput { o, lse: None })
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle_from_env());
    let adapter = pollster::block_on(instance.request_adapter(&wgpu::RequestAdapterOptions::default()))?;
    let (device, queue) = pollster::block_on(adapter.request_device(&wgpu::DeviceDescriptor::default()))?;
    let buffer = |size, usage| {
        let usage = usage | wgpu::BufferUsages::STORAGE;
        device.create_buffer(&wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false })
    };
    let q = buffer(32 * 128 * 4, wgpu::BufferUsages::COPY_DST);
    let kv_bytes = 8 * 4096 * 128 * 2;
    let cache = buffer(2 * kv_bytes, wgpu::BufferUsages::COPY_DST);
    let o = buffer(32 * 128 * 4, wgpu::BufferUsages::COPY_SRC);
    // the same value everywhere: an average of equal values is that value, whatever the weights
    queue.write_buffer(&q, 0, bytemuck::cast_slice(&[0.1_f32; 32 * 128]));
    queue.write_buffer(&cache, 0, bytemuck::cast_slice(&vec![f16::from_f32(0.25); 2 * 8 * 4096 * 128]));

    let mut encoder = device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    attend(&device, &queue, &mut encoder, &cache, &q, &o, kv_bytes)?;
    queue.submit([encoder.finish()]);

    let gpu = Gpu::from_wgpu(&device, &queue);
    let o = Tensor::from_buffer(&o, 0, o.size(), DType::F32, [1, 32, 1, 128])?.read::<f32>(&gpu)?;
    let worst = o.iter().map(|x| (x - 0.25).abs()).fold(0.0, f32::max);
    #[expect(clippy::print_stdout, reason = "an example shows its result")]
    {
        println!("{} ({})", gpu.name(), gpu.driver());
        println!("o[0, 0, 0, ..4] = {:?}; {worst:e} off at most", &o[..4]);
    }
    if worst < 1e-6 { Ok(()) } else { Err(format!("o is {worst:e} off 0.25").into()) }
}
