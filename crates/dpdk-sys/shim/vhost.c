/* Of librte_vhost, what the bindings leave opaque. */

#include <string.h>

#include <rte_vhost.h>

/* Descriptors of a ring; 0 where it has none yet. */
uint16_t weir_vhost_vring_size(int vid, uint16_t ring)
{
    struct rte_vhost_vring vring;

    memset(&vring, 0, sizeof vring);
    return rte_vhost_get_vhost_vring(vid, ring, &vring) == 0 ? vring.size : 0;
}
