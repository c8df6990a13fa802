//! Converts between the node ids of the store and those of the southbound protocol.

use sluice_southbound::Node;
use sluice_store::NodeId;

/// The store's id of a node.
pub fn store_id(node: Node) -> NodeId {
    match node {
        Node::Gateway(id) => NodeId::Gateway(id),
        Node::Host(id) => NodeId::Host(id),
    }
}

/// The southbound protocol's id of a node.
pub fn southbound_id(node: NodeId) -> Node {
    match node {
        NodeId::Gateway(id) => Node::Gateway(id),
        NodeId::Host(id) => Node::Host(id),
    }
}
