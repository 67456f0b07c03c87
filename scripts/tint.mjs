// Compiles WGSL with Tint, the compiler in Chromium, as a portable WebGPU device would: the limits every browser
// grants, uniform control flow around barriers enforced. Dawn's null backend serves, so no GPU and no driver is needed.
//
//   node scripts/tint.mjs PATH..      a .wgsl file, or a folder of them
//
// Needs the npm package `webgpu` in target/npm, where .ci/run puts it.

import { readFileSync, readdirSync, statSync } from 'node:fs';
import { createRequire } from 'node:module';
import { basename, join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';

const installed = createRequire(fileURLToPath(new URL('../target/npm/', import.meta.url)));
let webgpu;
try {
  webgpu = installed.resolve('webgpu');
} catch {
  console.error('tint.mjs: run `mkdir -p target/npm && cp scripts/package.json target/npm/ && npm install --prefix target/npm` first');
  process.exit(1);
}
const { create, globals } = await import(pathToFileURL(webgpu).href);
Object.assign(globalThis, globals);

const files = process.argv.slice(2).flatMap((path) =>
  statSync(path).isDirectory()
    ? readdirSync(path).filter((name) => name.endsWith('.wgsl')).sort().map((name) => join(path, name))
    : [path],
);
if (files.length === 0) {
  console.error('tint.mjs: no .wgsl files: name a file, or a folder that has some');
  process.exit(1);
}

// naga takes subgroup operations as they come and rejects the directive; WebGPU requires it.
function withEnable(source) {
  const code = source.replace(/\/\/.*|\/\*[^]*?\*\//g, '');
  const uses = /\b(subgroup|quad)[A-Z]\w*\s*\(|\bbuiltin\s*\(\s*(subgroup_|num_subgroups\b)/.test(code);
  // On the first line, so that line numbers stay those of the file.
  return uses && !/\benable\s[^;]*\bsubgroups\b/.test(code) ? `enable subgroups; ${source}` : source;
}

const gpu = create(['backend=null']);
const adapter = await gpu.requestAdapter();
// No limit is asked for: what exceeds the default of 16 KiB workgroup memory, 256 invocations or 8 storage buffers fails.
const device = await adapter.requestDevice({ requiredFeatures: ['shader-f16', 'subgroups'] });

// The first error of a file, or nothing.
async function firstError(file) {
  const code = withEnable(readFileSync(file, 'utf8'));
  // Catches the error event that the broken module raises besides its compilation messages.
  device.pushErrorScope('validation');
  const module = device.createShaderModule({ code });
  const scope = device.popErrorScope();
  const { messages } = await module.getCompilationInfo();
  const error = messages.find(({ type }) => type === 'error');
  const other = await scope;
  if (error) return `${error.lineNum}:${error.linePos}: ${error.message}`;
  if (other) return ` ${other.message}`;
  try {
    await device.createComputePipelineAsync({ layout: 'auto', compute: { module } });
  } catch (reason) {
    return ` ${reason.message}`;
  }
}

const errors = await Promise.all(files.map(firstError));
errors.forEach((error, ix) => {
  if (error) console.log(`${basename(files[ix])}:${error.split('\n')[0]}`);
});
const failed = errors.filter(Boolean).length;
console.log(`${files.length - failed} passed, ${failed} failed`);
process.exit(failed > 0 ? 1 : 0); // Dawn keeps the event loop alive
