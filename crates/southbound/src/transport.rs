//! The TLS, keepalive and size settings that both ends of a connection use.

use crate::server::{Southbound, SouthboundServer};
use crate::{CertificateAuthority, Error, MAX_REPORT_BYTES, MAX_UPDATE_BYTES, ServerCertificate};
use std::time::Duration;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity, Server, ServerTlsConfig};

/// An idle peer is probed at this interval.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);
/// A peer that does not answer a probe for this time is considered dead. Longer than a slow machine may stand
/// still.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(4);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// The server closes a connection whose handshake takes longer.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// HTTP/2 window: a few messages in flight, which is enough for one stream.
const WINDOW_BYTES: u32 = 4 << 20;

/// The controller's listener. Client certificates are optional, because a node that enrolls has none yet; if
/// there is one, it is verified. `Watch` requires one.
///
/// # Errors
/// [`Error::Connect`] if the certificate is unusable.
pub fn server_builder(ca: &CertificateAuthority, own: &ServerCertificate) -> Result<Server, Error> {
    let tls = ServerTlsConfig::new()
        .identity(Identity::from_pem(&own.certificate_pem, &own.key_pem))
        .client_ca_root(Certificate::from_pem(ca.certificate_pem()))
        .client_auth_optional(true)
        .timeout(HANDSHAKE_TIMEOUT);
    let server = Server::builder()
        .tls_config(tls)
        .map_err(|source| Error::Connect { controller: "own listener".to_owned(), source })?;
    Ok(server
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .max_concurrent_streams(Some(8))
        .tcp_nodelay(true))
}

/// The service, with the message size limits of the interface.
pub fn server_service<S: Southbound>(service: S) -> SouthboundServer<S> {
    SouthboundServer::new(service)
        .max_decoding_message_size(MAX_REPORT_BYTES)
        .max_encoding_message_size(MAX_UPDATE_BYTES)
}

/// Connects to the controller. `identity` is a certificate and its key, in PEM.
pub(crate) async fn channel(
    controller: &str,
    server_name: &str,
    ca_pem: &str,
    identity: Option<(&str, &str)>,
) -> Result<Channel, Error> {
    let failed = |source| Error::Connect { controller: controller.to_owned(), source };
    let mut tls = ClientTlsConfig::new()
        .domain_name(server_name)
        .ca_certificate(Certificate::from_pem(ca_pem))
        .timeout(HANDSHAKE_TIMEOUT);
    if let Some((certificate, key)) = identity {
        tls = tls.identity(Identity::from_pem(certificate, key));
    }
    Endpoint::from_shared(format!("https://{controller}"))
        .map_err(|_| Error::Address(controller.to_owned()))?
        .tls_config(tls)
        .map_err(failed)?
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .tcp_nodelay(true)
        .connect()
        .await
        .map_err(failed)
}
