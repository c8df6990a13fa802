//! Generates the southbound interface twice: messages with the client, and the
//! server, whose updates are encoded already (see `src/encoded.rs`).

use std::path::Path;

fn main() -> std::io::Result<()> {
    let proto = "../../api/southbound.proto";
    for file in [proto, "../../api/node_states.proto"] {
        println!("cargo:rerun-if-changed={file}");
    }
    let includes = ["../../api"];
    tonic_prost_build::configure().build_server(false).compile_protos(&[proto], &includes)?;

    let out = std::env::var("OUT_DIR").map_err(std::io::Error::other)?;
    let server = Path::new(&out).join("server");
    std::fs::create_dir_all(&server)?;
    tonic_prost_build::configure()
        .build_client(false)
        .out_dir(server)
        .extern_path(".sluice.southbound.v1.NodeUpdate", "crate::EncodedUpdate")
        .extern_path(".sluice.southbound.v1", "crate::proto")
        .compile_protos(&[proto], &includes)
}
