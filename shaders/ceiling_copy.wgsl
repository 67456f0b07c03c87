// ceiling_copy: the best copy of a buffer that a plain kernel reaches; what bandwidth is measured against.
//
// Each invocation copies one contiguous run: processors that pretend to be GPUs lose half their speed to
// strided walks.  The run's length comes from storage, as in every kernel.

// begin constants: valid as they stand; the dispatcher sets each by name
const LANES: u32 = 64u;
const CONTIGUOUS: bool = false; // a run to an invocation, or a run to a workgroup
// end constants

struct Params {
    run: u32, // vectors to an invocation
}

@group(0) @binding(0) var<storage, read> params: Params;
@group(0) @binding(1) var<storage, read> source: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> target_: array<vec4<f32>>;

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let first = group.x * LANES * params.run;
    for (var i = 0u; i < params.run; i++) {
        let at = first + select(i * LANES + lane, lane * params.run + i, CONTIGUOUS);
        target_[at] = source[at];
    }
}
