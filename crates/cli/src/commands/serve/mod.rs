//! `realizar serve`: models over HTTP, with OpenAI's API, until it is asked to stop.

mod args;
mod config;
mod descriptors;
mod kv_events;
mod load;
mod mcp;
mod models;
mod names;
mod start;

pub(crate) use args::Args;

use anyhow::{Context, Result};
use realizar_server::{ModelSpec, Models, Server, ServerConfig};

use crate::interrupt;
use crate::log;
use crate::options::GlobalArgs;
use crate::otel::Traces;
use crate::source::shown;
use crate::ui;
use load::Loader;
use models::Configured;

pub(crate) fn execute(args: &Args, global: &GlobalArgs) -> Result<()> {
    log::queue();
    // Before anything is freed.
    realizar_formats::give_back_large_blocks();
    let traces = args.observability.otel.then(Traces::start).transpose()?;
    let result = serve(args, global, traces.as_ref());
    if let Some(traces) = traces {
        traces.end();
    }
    result
}

fn serve(args: &Args, global: &GlobalArgs, traces: Option<&Traces>) -> Result<()> {
    let configured = models::configured(args)?;
    let observer = traces.map(Traces::observer);
    let mut config = config::server_config(args)?;
    descriptors::fit(&mut config.connections);
    let mcp_servers = args.chat.mcp.as_deref().map(crate::mcp::read).transpose()?;
    let tool_host = mcp_servers.as_deref().map(mcp::Host::new);
    let server_config = ServerConfig {
        observer,
        tool_host: tool_host.clone().map(|host| host as _),
        lost_log_records: Some(log::lost()),
        give_back_memory: Some(realizar_formats::give_back_freed_memory),
        ..config
    };
    let scheme = if server_config.tls.is_some() { "https" } else { "http" };
    // The engines' threads do the work; those of the server wait and copy.
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build();
    let runtime = runtime.context("cannot start the server's threads")?;
    let kv_events = runtime.block_on(kv_events::bind(args))?;
    let sources = global.sources();
    let pulled = match models::offers_pulled(args) {
        true => Some(sources.cache()?.clone()),
        false => None,
    };
    // An alias of a model that is not there is an error before anything is served.
    if let Some(cache) = &pulled
        && let Some(alias) = models::pulled(cache, &args.models.alias)?.1.first()
    {
        return Err(alias.unknown());
    }
    let loader = Loader {
        pulled: pulled.clone(),
        args: args.clone(),
        global: global.clone(),
        models: configured.iter().map(|model| model.spec.clone()).collect(),
        cache_sink: kv_events.as_ref().map(kv_events::KvEvents::sink),
    };
    let models = Models::with_loader(loader, config::models_config(args));
    let mut at_start = Vec::new();
    for Configured { spec, at_start: now, is_named } in configured {
        at_start.extend(now.then(|| spec.name.clone()));
        // The server shows the source to its clients.
        let spec = ModelSpec { source: shown(&spec.source), ..spec };
        if is_named { models.configure(spec)? } else { models.offer(spec)? }
    }
    let (address, running) = runtime.block_on(async {
        let server = Server::bind(server_config, models.clone()).await?;
        if let Some((host, servers)) = tool_host.zip(mcp_servers) {
            host.start(servers);
        }
        let address = server.address();
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let stopped = async move {
            // The sender goes only with the program.
            let _: Result<(), _> = stopped.await;
        };
        let running = tokio::spawn(server.run(stopped));
        Ok::<_, anyhow::Error>((address, (stop, running)))
    })?;
    // The address is taken and says that it is not ready, and the models take their time.
    models.preload(&at_start).map_err(load::start_error)?;
    let (stop, mut running) = running;
    runtime.block_on(async {
        // Before the line that announces the server, so that its reader can end the server.
        let guard = interrupt::Guard::new();
        let terminated = interrupt::termination()?;
        let abandoned = abandonment(args.until_stdin_ends)?;
        // The server runs whether it is read or not.
        let lines = start::lines(&format!("{scheme}://{address}"), args, &models, pulled.as_ref());
        if let Err(error) = ui::line(&lines.join("\n")) {
            tracing::warn!("cannot write the address to standard output: {error:#}");
        }
        tokio::select! {
            result = &mut running => return Ok(result??),
            () = guard.wait() => {}
            () = terminated => {}
            () = abandoned => {}
        }
        tracing::info!("shutting down");
        // An error means that the server has ended already, which its result tells.
        let _ = stop.send(());
        Ok(running.await??)
    })
}

/// The end of standard input, if the server is to end with it.
fn abandonment(is_wanted: bool) -> Result<impl Future<Output = ()>> {
    let (sender, ended) = tokio::sync::oneshot::channel::<()>();
    if is_wanted {
        let read = move || {
            // An error is an end, too.
            let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
            // The server may have ended already.
            let _ = sender.send(());
        };
        let thread = std::thread::Builder::new().name("stdin".to_owned());
        thread.spawn(read).context("cannot start the thread that reads standard input")?;
    }
    Ok(async move {
        if !is_wanted || ended.await.is_err() {
            std::future::pending::<()>().await;
        }
    })
}
