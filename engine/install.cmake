# install.cmake: cmake --install: the library, its headers, the pkg-config file, the program.
install(TARGETS tlua_engine tlua_host LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS tlua RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(FILES ${PROJECT_SOURCE_DIR}/scripts/bench_torch.py DESTINATION ${CMAKE_INSTALL_DATADIR}/tlua)
foreach(header tlua.h ops/ops.def train/train.h data/data.h dist/dist.h)
  get_filename_component(folder ${header} DIRECTORY)
  install(FILES ${PROJECT_SOURCE_DIR}/engine/${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tlua/${folder})
endforeach()
install(FILES ${PROJECT_SOURCE_DIR}/bindings/tlua_host.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tlua)
install(FILES ${PROJECT_SOURCE_DIR}/docs/tlua.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)

# Found from where it lies, so that a moved or staged tree works.
file(RELATIVE_PATH TLUA_PC_PREFIX /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" TLUA_PC_PREFIX "${TLUA_PC_PREFIX}")
configure_file(${PROJECT_SOURCE_DIR}/engine/tlua.pc.in ${PROJECT_BINARY_DIR}/tlua.pc @ONLY)
configure_file(${PROJECT_SOURCE_DIR}/bindings/tlua-host.pc.in ${PROJECT_BINARY_DIR}/tlua-host.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/tlua.pc ${PROJECT_BINARY_DIR}/tlua-host.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

file(RELATIVE_PATH TLUA_CMAKE_PREFIX /${CMAKE_INSTALL_LIBDIR}/cmake/tlua /)
string(REGEX REPLACE "/$" "" TLUA_CMAKE_PREFIX "${TLUA_CMAKE_PREFIX}")
include(CMakePackageConfigHelpers)
configure_file(${PROJECT_SOURCE_DIR}/engine/tluaConfig.cmake.in ${PROJECT_BINARY_DIR}/tluaConfig.cmake @ONLY)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/tluaConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/tluaConfig.cmake ${PROJECT_BINARY_DIR}/tluaConfigVersion.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/tlua)
if(TARGET tlua_mpi)
  install(TARGETS tlua_mpi LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
