include(CMakePackageConfigHelpers)
configure_package_config_file(${CMAKE_SOURCE_DIR}/cmake/convoyConfig.cmake.in ${CMAKE_BINARY_DIR}/convoyConfig.cmake
                              INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/convoy)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/convoyConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/convoyConfig.cmake ${CMAKE_BINARY_DIR}/convoyConfigVersion.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/convoy)
# What programs are started with, and what plugins are begun from.
install(DIRECTORY ${CMAKE_SOURCE_DIR}/bench/problems DESTINATION ${CMAKE_INSTALL_DATADIR}/convoy)
install(DIRECTORY ${CMAKE_SOURCE_DIR}/apps/launch DESTINATION ${CMAKE_INSTALL_DATADIR}/convoy USE_SOURCE_PERMISSIONS)
install(FILES ${CMAKE_SOURCE_DIR}/tests/consumer/my_dense.cpp ${CMAKE_SOURCE_DIR}/tests/consumer/my_conv.cpp DESTINATION ${CMAKE_INSTALL_DATADIR}/convoy/plugins)
install(FILES ${CMAKE_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
foreach(document README.md core/README.md kernels/README.md kernels/NOTES.md layers/README.md models/README.md dist/README.md io/README.md apps/README.md apps/climate-example.png bench/README.md
        bench/results/README.md tests/README.md)
  get_filename_component(folder ${document} DIRECTORY)
  install(FILES ${CMAKE_SOURCE_DIR}/${document} DESTINATION ${CMAKE_INSTALL_DOCDIR}/${folder})
endforeach()
install(EXPORT convoyTargets NAMESPACE convoy:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/convoy)
