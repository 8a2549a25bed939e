/* graph.h: recorded steps, as optimizers see them. */
#ifndef TL_TRAIN_GRAPH_H
#define TL_TRAIN_GRAPH_H

#include "train/optimizer.h"

/* o steps while this thread records: each replay refreshes what its device knows of it. */
tl_status tl_graph_note(tl_optimizer *o);

#endif
