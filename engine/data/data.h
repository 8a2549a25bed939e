/* data.h: loaders and file formats (a part of tlua.h). */
