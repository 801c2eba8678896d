//! Compiles what tch does not pass on of libtorch, and lets `ft-trainer` find libtorch without any environment variable at run
//! time: where it was linked, or beside the program as in an image.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Parts that need no libtorch are not built again because one was found.
    #[cfg(feature = "torch")]
    torch();
}

#[cfg(feature = "torch")]
fn torch() {
    use std::env::var;
    use std::path::PathBuf;

    const SOURCES: [&str; 3] = ["src/aten/shim.cpp", "src/aten/c10d.cpp", "src/aten/nccl.cpp"];

    for name in ["LIBTORCH", "LIBTORCH_INCLUDE", "LIBTORCH_CXX11_ABI"] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    for source in SOURCES.iter().chain(&["src/aten/attempt.h", "src/aten/part.h"]) {
        println!("cargo::rerun-if-changed={source}");
    }
    // Where torch-sys found it, which looks in more places.
    let linked = var("DEP_TCH_LIBTORCH_LIB").map(PathBuf::from).unwrap_or_default();
    let home = var("LIBTORCH").map_or_else(|_| linked.join(".."), PathBuf::from);
    let include = var("LIBTORCH_INCLUDE").map_or_else(|_| home.clone(), PathBuf::from).join("include");
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .warnings(false)
        .define("_GLIBCXX_USE_CXX11_ABI", var("LIBTORCH_CXX11_ABI").as_deref().unwrap_or("1"))
        .include(&include)
        .files(SOURCES)
        .compile("ft_aten");
    println!("cargo::rustc-link-arg=-Wl,-rpath,{}", home.join("lib").display());
    println!("cargo::rustc-link-arg=-Wl,-rpath,$ORIGIN/../lib");
}
