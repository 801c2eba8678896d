//! Lets `ft-trainer` find libtorch without any environment variable at run time: where it was linked, or beside the program as in an image.

fn main() {
    println!("cargo::rerun-if-env-changed=LIBTORCH");
    if let Ok(libtorch) = std::env::var("LIBTORCH") {
        println!("cargo::rustc-link-arg=-Wl,-rpath,{libtorch}/lib");
        println!("cargo::rustc-link-arg=-Wl,-rpath,$ORIGIN/../lib");
    }
}
