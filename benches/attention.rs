//! Every named workload: one group a kernel, one id a case; device time where the device tells it.

use std::cell::OnceCell;
use std::time::Duration;

use criterion::{Criterion, Throughput};
use wgpu_attention::Gpu;
use wgpu_attention::measure::{Prepared, Timing, Workload, time, workloads};

/// Uploads a case, runs it once, and refuses to go on when the answer is wrong.
fn checked(gpu: &Gpu, case: &Workload) -> Prepared {
    let prepared = case.prepare(gpu).expect("a workload runs on every device");
    run(gpu, &prepared, 1);
    let check = prepared.check(gpu).expect("results can be read back");
    assert!(check.passed, "{} is wrong and is not timed: {check:?}", case.name);
    prepared
}

fn run(gpu: &Gpu, prepared: &Prepared, reps: u64) -> Timing {
    let reps = usize::try_from(reps).expect("criterion asks for few repetitions");
    time(gpu, reps, |encoder| prepared.record(gpu, encoder)).expect("a checked case runs again")
}

fn total(seconds: &[f64]) -> Duration {
    Duration::from_secs_f64(seconds.iter().sum())
}

fn main() {
    let gpu = Gpu::new().expect("benches need an adapter; a software one will do");
    eprintln!("{} ({}), {}", gpu.name(), gpu.kind(), gpu.driver());
    let mut criterion = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(2))
        .configure_from_args();
    for case in workloads() {
        let kernel = case.kernel(gpu.limits()).expect("some kernel takes every workload");
        let mut group = criterion.benchmark_group(kernel);
        let [bytes, elements] = case.work(gpu.limits()).expect("some kernel takes every workload");
        group.throughput(Throughput::ElementsAndBytes { elements, bytes });
        // uploaded only if criterion's filter takes the case
        let prepared = OnceCell::new();
        group.bench_function(case.name.as_str(), |bencher| {
            bencher.iter_custom(|iterations| {
                let prepared = prepared.get_or_init(|| checked(&gpu, &case));
                total(&run(&gpu, prepared, iterations).seconds)
            });
        });
        group.finish();
    }
    launch(&mut criterion, &gpu);
    criterion.final_summary();
}

/// What a call costs beside its work: recording, submission and waiting for a single key.
fn launch(criterion: &mut Criterion, gpu: &Gpu) {
    let case = Workload::smallest();
    let prepared = OnceCell::new();
    criterion.benchmark_group("launch").bench_function(case.name.as_str(), |bencher| {
        bencher.iter_custom(|iterations| {
            let prepared = prepared.get_or_init(|| checked(gpu, &case));
            total(&run(gpu, prepared, iterations).call_seconds)
        });
    });
}
