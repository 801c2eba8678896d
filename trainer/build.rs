//! Lets `ft-trainer` find libtorch without any environment variable at run time: where it was linked, or beside the program as in an image.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // What needs no libtorch is not built again because one was found.
    if std::env::var_os("CARGO_FEATURE_TORCH").is_none() {
        return;
    }
    println!("cargo::rerun-if-env-changed=LIBTORCH");
    if let Ok(libtorch) = std::env::var("LIBTORCH") {
        println!("cargo::rustc-link-arg=-Wl,-rpath,{libtorch}/lib");
        println!("cargo::rustc-link-arg=-Wl,-rpath,$ORIGIN/../lib");
    }
}
