//! Maps that shrink after they were large for a while.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash};

/// A map with room for fewer keeps it.
const FEW: usize = 256;

/// Frees the room of a map that is nearly empty, so that a process that once held many locks does not
/// keep their memory for ever. To be called after something was taken out.
pub(crate) fn give_back<K: Eq + Hash, V, S: BuildHasher>(map: &mut HashMap<K, V, S>) {
    if map.capacity() > FEW && map.len() < map.capacity() / 8 {
        // Twice what is needed, so that it does not have to grow at once.
        map.shrink_to(2 * map.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_unused_large_map_shrinks() {
        let mut map: HashMap<_, _> = (0..10_000).map(|n| (n, n)).collect();
        let full = map.capacity();
        let mut room = vec![full];
        for n in 0..10_000 {
            map.remove(&n);
            give_back(&mut map);
            // What was taken out may not count as room at once.
            if map.capacity() < room[room.len() - 1] / 2 {
                assert!(map.len() < room[room.len() - 1] / 8);
                room.push(map.capacity());
            }
        }
        assert!(map.capacity() <= FEW, "{room:?}");
        assert!(room.len() < 5, "it is moved now and then, not always: {room:?}");
    }
}
