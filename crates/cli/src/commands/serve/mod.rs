//! `realizar serve`: models over HTTP, by OpenAI's API, until it is told to stop.

mod args;
mod config;
mod load;
mod names;

pub(crate) use args::Args;

use anyhow::{Context, Result};
use realizar_runtime::ModelOutput;
use realizar_server::{Models, Server};

use crate::interrupt;
use crate::options::GlobalArgs;
use crate::ui;
use config::config;
use load::load;
use names::{names, own_name};

pub(crate) fn execute(args: &Args, global: &GlobalArgs) -> Result<()> {
    let names = names(&args.models, &args.alias)?;
    if args.template.is_some() && args.models.len() > 1 {
        return Err(ui::usage("--template is for one model, and there are several"));
    }
    let config = config(args)?;
    // The engines' threads do the work; those of the server wait and copy.
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build();
    let runtime = runtime.context("cannot start the server's threads")?;
    let (address, state, running) = runtime.block_on(async {
        let server = Server::bind(config, Models::new()).await?;
        let (address, state) = (server.address(), server.state().clone());
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let stopped = async move {
            // The sender goes only with the program.
            let _: Result<(), _> = stopped.await;
        };
        let running = tokio::spawn(server.run(stopped));
        Ok::<_, anyhow::Error>((address, state, (stop, running)))
    })?;
    // The address is taken and says that it is not ready, and the models take their time.
    for (source, names) in args.models.iter().zip(names) {
        state.models().add(load(source, names, ModelOutput::Logits, args, global)?)?;
    }
    for given in &args.embedding_model {
        let (name, source) = match given.split_once('=') {
            Some((name, source)) => (name.to_owned(), source),
            None => (own_name(given), given.as_str()),
        };
        let name = if state.models().get(&name).is_some() { name + "-embedding" } else { name };
        let model = load(source, vec![name], ModelOutput::Embeddings, args, global)?;
        state.models().add(model)?;
    }
    let guard = interrupt::Guard::new();
    ui::line(&format!("listening on http://{address}"))?;
    let (stop, mut running) = running;
    let result = runtime.block_on(async {
        tokio::select! {
            result = &mut running => return Ok(result??),
            asked = asked_to_stop() => asked?,
        }
        tracing::info!("shutting down");
        // An error means that the server has ended already, which its result tells.
        let _ = stop.send(());
        Ok::<_, anyhow::Error>(running.await??)
    });
    drop(guard);
    result
}

/// Waits for Ctrl-C or the system's wish that the process ends.
async fn asked_to_stop() -> Result<()> {
    let interrupt = tokio::signal::ctrl_c();
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let mut terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
        tokio::select! {
            result = interrupt => result.context("cannot wait for Ctrl-C"),
            _ = terminate.recv() => Ok(()),
        }
    }
    #[cfg(not(unix))]
    interrupt.await.context("cannot wait for Ctrl-C")
}
