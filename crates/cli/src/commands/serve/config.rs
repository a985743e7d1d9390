//! From arguments to the settings of the server itself.

use std::time::Duration;

use anyhow::{Context, Result};
use realizar_server::{ConnectionLimits, Limits, ModelsConfig, ServerConfig, TlsFiles};

use super::args::Args;
use crate::ui;

/// The settings; keys are read from their file.
pub(super) fn server_config(args: &Args) -> Result<ServerConfig> {
    let mut api_keys = args.access.api_key.clone();
    if let Some(path) = &args.access.api_key_file {
        let text = std::fs::read_to_string(path);
        let text = text.with_context(|| format!("cannot read {}", path.display()))?;
        let keys = text.lines().map(str::trim);
        let keys = keys.filter(|line| !line.is_empty() && !line.starts_with('#'));
        let before = api_keys.len();
        api_keys.extend(keys.map(str::to_owned));
        // Without keys the server would be open, which is not what the flag asks for.
        anyhow::ensure!(api_keys.len() > before, "{} has no API keys", path.display());
    }
    if args.access.admin_key.iter().any(String::is_empty) {
        return Err(ui::usage("an admin key is empty"));
    }
    if api_keys.iter().any(String::is_empty) {
        return Err(ui::usage("an API key is empty"));
    }
    let seconds = |n: usize| Duration::from_secs(n as u64);
    Ok(ServerConfig {
        host: args.network.host.clone(),
        port: args.network.port,
        tls: args
            .network
            .tls_cert
            .clone()
            .zip(args.network.tls_key.clone())
            .map(|(cert, key)| TlsFiles::new(cert, key)),
        connections: ConnectionLimits {
            open: args.limits.max_connections,
            per_address: args.limits.max_connections_per_address,
            trusted_proxies: args.limits.trusted_proxy.clone(),
            idle_timeout: seconds(args.limits.idle_timeout),
            ..ConnectionLimits::default()
        },
        api_keys,
        admin_keys: args.access.admin_key.clone(),
        allowed_origins: args.access.cors_origin.clone(),
        allowed_hosts: args.access.allowed_hosts.clone(),
        limits: Limits {
            body_bytes: args.limits.max_body.saturating_mul(1 << 20),
            bodies_bytes: args.limits.max_bodies.saturating_mul(1 << 20),
            values: args.limits.max_values,
            prompt_tokens: args.limits.max_prompt,
            output_tokens: args.limits.max_output,
            ..Limits::default()
        },
        request_timeout: args.limits.timeout.map(seconds),
        shutdown_grace: seconds(args.limits.grace),
        ..ServerConfig::default()
    })
}

/// How many models are loaded, and when.
pub(super) fn models_config(args: &Args) -> ModelsConfig {
    ModelsConfig {
        memory_limit: args.models.memory_limit,
        max_loaded: Some(args.models.models_max).filter(|&n| n > 0),
        autoload: !args.models.no_models_autoload,
        keep_alive: args.models.keep_alive,
        unload_grace: Duration::from_secs(args.limits.grace as u64),
        ..ModelsConfig::default()
    }
}
