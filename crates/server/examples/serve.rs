//! Serves one model on 127.0.0.1 until Ctrl-C.
//!
//! ```sh
//! cargo run --release -p realizar-server --example serve -- model.gguf 8080
//! ```

use realizar_runtime::backend::cpu::CpuBackend;
use realizar_runtime::engine::{Engine, EngineOptions};
use realizar_runtime::{LoadOptions, Model};
use realizar_server::{Models, ServedModel, Server, ServerConfig};
use std::path::Path;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("expected the path of a model")?;
    let port = args.next().map_or(Ok(8080), |port| port.parse())?;

    let backend = CpuBackend::new(None, None)?;
    let options = LoadOptions { max_seqs: 4, prefix_cache: true, ..LoadOptions::default() };
    let model = Model::load(Path::new(&path), &backend, &options)?;
    let models = Models::new();
    models.add(ServedModel::new("model", Engine::start(model, EngineOptions::default())?))?;

    let config = ServerConfig { port, ..ServerConfig::default() };
    let server = Server::bind(config, models).await?;
    println!("listening on http://{}", server.address());
    let interrupted = async {
        // Without a way to wait for Ctrl-C, the server ends at once.
        let _ = tokio::signal::ctrl_c().await;
    };
    server.run(interrupted).await?;
    Ok(())
}
