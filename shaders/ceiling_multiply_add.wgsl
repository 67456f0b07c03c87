// ceiling_multiply_add: the best f32 multiply-add rate that a plain kernel reaches, all in registers.

// begin constants: valid as they stand; the dispatcher sets each by name
const LANES: u32 = 64u;
const CHAINS: u32 = 32u;        // independent accumulators
const REPEAT: u32 = 8u;         // steps to an iteration: some drivers mask what a loop carries around
// end constants

struct Params {
    steps: u32, // iterations
    x: f32,
    y: f32,
}

@group(0) @binding(0) var<storage, read> params: Params;
@group(0) @binding(1) var<storage, read_write> sums: array<f32>;   // one an invocation, so that nothing is dead

@compute @workgroup_size(LANES)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    var chain: array<f32, CHAINS>;
    for (var c = 0u; c < CHAINS; c++) { //!unroll
        chain[c] = f32(id.x + c);
    }
    let x = params.x; // a load in the loop would cost some drivers as much as the sums
    let y = params.y;
    for (var i = 0u; i < params.steps; i++) {
        for (var r = 0u; r < REPEAT; r++) { //!unroll
            for (var c = 0u; c < CHAINS; c++) { //!unroll
                chain[c] = fma(chain[c], x, y);
            }
        }
    }
    var all = 0.0;
    for (var c = 0u; c < CHAINS; c++) { //!unroll
        all += chain[c];
    }
    sums[id.x] = all;
}
