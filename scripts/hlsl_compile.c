/* Compiles HLSL compute shaders with Microsoft's compilers, as wgpu's DX12 backend does.
 *
 *   hlsl_compile.exe JOBS      each line of the file JOBS: "dxc FILE" or "fxc FILE"
 *
 * Writes a line per job: compiler, file, "ok" or the first error, milliseconds; tabs between them. Many jobs per
 * process, because wine takes seconds to start. dxcompiler.dll and d3dcompiler_47.dll lie beside the program. */

#define COBJMACROS
#include <windows.h>

#include <d3dcompiler.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ENTRY "main"
#define UTF8 65001

/* dxcapi.h does not come with mingw: the vtables as far as they are called here, in its order. */
typedef struct Object Object;
typedef struct {
    HRESULT(WINAPI *query)(Object *, const GUID *, void **);
    ULONG(WINAPI *add_ref)(Object *);
    ULONG(WINAPI *release)(Object *);
    void *method[4];
} Vtable;
struct Object {
    const Vtable *v;
};
typedef struct {
    const void *data;
    SIZE_T size;
    UINT encoding;
} Source;

typedef HRESULT(WINAPI *CreateInstance)(const GUID *class_id, const GUID *interface_id, void **out);
typedef HRESULT(WINAPI *Compile)(Object *, const Source *, const WCHAR **args, UINT n_args, void *includes,
                                 const GUID *interface_id, void **out);  /* IDxcCompiler3, 0 */
typedef HRESULT(WINAPI *GetStatus)(Object *, HRESULT *);                 /* IDxcOperationResult, 0 */
typedef HRESULT(WINAPI *GetErrorBuffer)(Object *, Object **);            /* IDxcOperationResult, 2 */
typedef void *(WINAPI *GetPointer)(Object *);                            /* IDxcBlob, 0 */
typedef SIZE_T(WINAPI *GetSize)(Object *);                               /* IDxcBlob, 1 */

static const GUID DXC_COMPILER = {0x73e22d93, 0xe6ce, 0x47f3, {0xb5, 0xbf, 0xf0, 0x66, 0x4f, 0x39, 0xc1, 0xb0}};
static const GUID COMPILER3 = {0x228b4687, 0x5a6a, 0x4730, {0x90, 0x0c, 0x97, 0x02, 0xb2, 0x20, 0x3f, 0x54}};
static const GUID RESULT = {0x58346cda, 0xdde7, 0x4497, {0x94, 0x61, 0x6f, 0x87, 0xaf, 0x5e, 0x06, 0x59}};

/* The line of the first error, else the first line, into `out`. */
static void first_error(const char *text, SIZE_T size, char *out, size_t room) {
    char *copy = calloc(size + 1, 1);
    memcpy(copy, text, size);
    char *summary = strstr(copy, "validation errors"); /* DXC's heading; the reasons come below it */
    char *line = strstr(summary ? summary + strlen("validation errors") : copy, "error");
    if (!line) line = copy;
    while (line > copy && line[-1] != '\n') line--;
    line[strcspn(line, "\r\n")] = 0;
    snprintf(out, room, "%s", *line ? line : "refused without a message");
    free(copy);
}

static int dxc(Object *compiler, const char *text, SIZE_T size, char *message, size_t room) {
    /* 6.2 is the first model with 16-bit types; wave operations came with 6.0. */
    const WCHAR *args[] = {L"-E", L"" ENTRY, L"-T", L"cs_6_2", L"-HV", L"2018", L"-no-warnings", L"-Ges",
                           L"-enable-16bit-types"};
    Source source = {text, size, UTF8};
    Object *result = NULL, *errors = NULL;
    HRESULT status = ((Compile)compiler->v->method[0])(compiler, &source, args, sizeof args / sizeof *args, NULL,
                                                       &RESULT, (void **)&result);
    if (SUCCEEDED(status)) ((GetStatus)result->v->method[0])(result, &status);
    if (FAILED(status)) {
        snprintf(message, room, "DXC returned %08lx", (unsigned long)status);
        if (result) ((GetErrorBuffer)result->v->method[2])(result, &errors);
        if (errors) {
            SIZE_T length = ((GetSize)errors->v->method[1])(errors);
            first_error(((GetPointer)errors->v->method[0])(errors), length, message, room);
            errors->v->release(errors);
        }
    }
    if (result) result->v->release(result);
    return SUCCEEDED(status);
}

static int fxc(pD3DCompile compile, const char *path, const char *text, SIZE_T size, char *message,
               size_t room) {
    ID3DBlob *code = NULL, *errors = NULL;
    HRESULT status = compile(text, size, path, NULL, NULL, ENTRY, "cs_5_1", D3DCOMPILE_ENABLE_STRICTNESS, 0, &code,
                             &errors);
    if (FAILED(status)) {
        snprintf(message, room, "FXC returned %08lx", (unsigned long)status);
        if (errors) first_error(ID3D10Blob_GetBufferPointer(errors), ID3D10Blob_GetBufferSize(errors), message, room);
    }
    if (errors) ID3D10Blob_Release(errors);
    if (code) ID3D10Blob_Release(code);
    return SUCCEEDED(status);
}

int main(int argc, char **argv) {
    HMODULE dxc_dll = LoadLibraryA("dxcompiler.dll"), fxc_dll = LoadLibraryA("d3dcompiler_47.dll");
    FILE *jobs = argc == 2 ? fopen(argv[1], "r") : NULL;
    if (!jobs || !dxc_dll || !fxc_dll) return fprintf(stderr, "needs a job list and two DLLs\n"), 2;
    Object *compiler = NULL;
    ((CreateInstance)(void *)GetProcAddress(dxc_dll, "DxcCreateInstance"))(&DXC_COMPILER, &COMPILER3, (void **)&compiler);
    pD3DCompile compile = (pD3DCompile)(void *)GetProcAddress(fxc_dll, "D3DCompile");
    if (!compiler || !compile) return fprintf(stderr, "the DLLs lack an entry point\n"), 2;

    LARGE_INTEGER frequency;
    QueryPerformanceFrequency(&frequency);
    char line[1024], message[400];
    while (fgets(line, sizeof line, jobs)) {
        line[strcspn(line, "\r\n")] = 0;
        const char *path = line + 4;
        FILE *file = strlen(line) > 4 ? fopen(path, "rb") : NULL;
        if (!file) return fprintf(stderr, "cannot read \"%s\"\n", line), 2;
        fseek(file, 0, SEEK_END);
        SIZE_T size = ftell(file);
        rewind(file);
        char *text = malloc(size);
        size = fread(text, 1, size, file);
        fclose(file);
        LARGE_INTEGER start, end;
        QueryPerformanceCounter(&start);
        int ok = *line == 'd' ? dxc(compiler, text, size, message, sizeof message)
                              : fxc(compile, path, text, size, message, sizeof message);
        QueryPerformanceCounter(&end);
        double ms = 1e3 * (double)(end.QuadPart - start.QuadPart) / (double)frequency.QuadPart;
        printf("%.3s\t%s\t%s\t%.0f\n", line, path, ok ? "ok" : message, ms);
        fflush(stdout); /* so that a crash shows which file caused it */
        free(text);
    }
    return 0;
}
