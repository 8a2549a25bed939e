# install.cmake: cmake --install: the library, its headers, the pkg-config file, the program.
install(TARGETS tlua_engine LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS tlua RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(FILES ${PROJECT_SOURCE_DIR}/scripts/bench_torch.py DESTINATION ${CMAKE_INSTALL_DATADIR}/tlua)
foreach(header tlua.h ops/ops.def train/train.h data/data.h)
  get_filename_component(folder ${header} DIRECTORY)
  install(FILES ${PROJECT_SOURCE_DIR}/engine/${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tlua/${folder})
endforeach()

# Found from where it lies, so that a moved or staged tree works.
file(RELATIVE_PATH TLUA_PC_PREFIX /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" TLUA_PC_PREFIX "${TLUA_PC_PREFIX}")
configure_file(${PROJECT_SOURCE_DIR}/engine/tlua.pc.in ${PROJECT_BINARY_DIR}/tlua.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/tlua.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
