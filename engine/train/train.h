/* train.h: optimizers and learning-rate schedules (a part of tlua.h). */
